#!/bin/sh
# Installs Rookery on Debian 12 or newer with systemd. As root, in a checkout of the project:
#
#   deploy/install.sh --owner npub1… --url wss://relay.example.org --name "Our relay"
#
# The options are those of `rookery init`. Called again, without options, it upgrades. It makes
#
#   /opt/rookery              the program, with exactly the packages of deploy/requirements.lock
#   /usr/local/bin/rookery    a link to it
#   /var/lib/rookery          the relay's data, readable by the user `rookery` alone
#   /var/backups/rookery      backups, likewise: one each night, seven are kept
#   /etc/systemd/system       rookery.service, rookery.socket, rookery-backup.service and .timer
#
# and changes nothing else. The relay listens on 127.0.0.1:7777, and trusts a proxy on this machine.
set -eu
umask 022  # whatever root's is: the user `rookery` runs the program
cd "$(dirname "$0")/.."

program=/opt/rookery data=/var/lib/rookery backups=/var/backups/rookery
# Without root's terminal: another process of the user could type commands into it.
as_rookery="setsid --wait runuser -u rookery --"
fail() { echo "install.sh: $*" >&2; exit 1; }
step() { echo "== $*"; }

[ "$(id -u)" = 0 ] || fail "only root can install: sudo deploy/install.sh …"
if [ -e $data/rookery.toml ]; then
    [ $# = 0 ] || fail "$data exists, so this upgrades: no options"
elif [ $# = 0 ]; then
    fail "needs --owner with your public key, and --url; see the first lines of $0"
else
    # Without it nobody could log in through the proxy, and `init` does not know of the proxy.
    case " $*" in *" --url"*) ;; *) fail "needs --url too, the address that clients use" ;; esac
fi

step "packages of Debian"
python3 -c 'import venv, ensurepip' 2>/dev/null \
    || apt-get install --yes --no-install-recommends python3-venv

step "the program, into $program"
# Built before anything that runs is touched.
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
python3 -m venv "$build/venv"
"$build/venv/bin/pip" install --quiet --require-hashes -r deploy/build.lock
"$build/venv/bin/python" -m hatchling build -t wheel -d "$build" >/dev/null
# A virtual environment belongs to one version of Python: after an upgrade of Debian a new one.
"$program/bin/python" -Ic 'import relay' 2>/dev/null || python3 -m venv --clear $program
$program/bin/pip install --quiet --require-hashes -r deploy/requirements.lock
$program/bin/pip install --quiet --no-index --no-deps --force-reinstall "$build"/*.whl
ln -sf $program/bin/rookery /usr/local/bin/rookery

step "the user rookery, $data and $backups"
id rookery >/dev/null 2>&1 \
    || useradd --system --user-group --home-dir $data --shell /usr/sbin/nologin rookery
install -d -o rookery -g rookery -m 0700 $data $backups

step "units of systemd"
for unit in rookery.service rookery.socket rookery-backup.service rookery-backup.timer; do
    install -m 0644 deploy/$unit /etc/systemd/system/
done

if [ ! -e $data/rookery.toml ]; then
    step "settings, policies and the relay's key, into $data"
    # Without its last line, which names a command to start the relay: systemd starts it.
    $as_rookery $program/bin/rookery init $data "$@" --json >/dev/null
    sed -i 's|^# trusted_proxies = .*|trusted_proxies = ["127.0.0.1/32", "::1/128"]|' $data/rookery.toml
fi

if [ ! -d /run/systemd/system ]; then
    $as_rookery $program/bin/rookery serve --check --data $data
    echo "systemd does not run here: nothing was started"
elif systemctl --quiet is-active rookery.service; then
    step "restart"
    systemctl daemon-reload
    # Checks first whether the new version starts, and goes on as it is when not.
    $as_rookery $program/bin/rookery restart --data $data
else
    step "start"
    systemctl daemon-reload
    systemctl enable --quiet --now rookery.socket rookery-backup.timer rookery.service
fi
echo
echo "$($program/bin/rookery --version) is installed. Next, if not done: a certificate, see deploy/README.md."
