// Everything here is a convenience: pages are read without it.
const { at, csrf } = document.body.dataset;
document.documentElement.classList.add("js");

function say(text) {
  const said = document.getElementById("said");
  said.textContent = text;
  said.hidden = !text;
}

function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(each.dateTime);
    if (!Number.isNaN(moment.valueOf())) {
      each.title = each.dateTime;
      each.textContent = moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    }
  }
}

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

// crypto.randomUUID is missing where a page is neither https nor of this machine.
const random = () => [...crypto.getRandomValues(new Uint8Array(12))].map((each) => each.toString(36)).join("");

function extension() {
  if (!window.nostr) {
    say("No extension with a key (NIP-07) was found in this browser.");
    return null;
  }
  return window.nostr;
}

async function authorization(path, method, body) {
  const tags = [["u", new URL(path, location.href).href], ["method", method]];
  if (body) {
    if (!crypto.subtle) throw new Error("Management calls need https: use the command.");
    const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(body));
    tags.push(["payload", [...new Uint8Array(hash)].map((each) => each.toString(16).padStart(2, "0")).join("")]);
  }
  tags.push(["nonce", random()]);
  const created_at = Math.floor(Date.now() / 1000);
  const signed = await extension().signEvent({ kind: 27235, created_at, tags, content: "" });
  return `Nostr ${base64(JSON.stringify(signed))}`;
}

async function signIn() {
  if (!extension()) return;
  const path = `${at}/sign-in`;
  const answer = await fetch(path, { method: "POST", headers: { Authorization: await authorization(path, "POST") } });
  const reply = await answer.json();
  if (answer.ok) location.assign(reply.next);
  else say(reply.error);
}

function go(next) {
  if (next) location.assign(`${at}/${next}`);
  else location.reload();
}

async function act(button) {
  const { kind, tags, content, confirm: name, code, next, after } = button.dataset;
  if (!extension()) return;
  if (name && window.prompt(`This cannot be undone. Type ${name} to go on.`) !== name) return;
  const named = JSON.parse(tags);
  if (code) named.push(["code", random()]);
  const created_at = Math.max(Math.floor(Date.now() / 1000), Number(after || 0) + 1);
  const draft = { kind: Number(kind), tags: named, content: content || "", created_at };
  const event = await extension().signEvent(draft);
  const body = new URLSearchParams({ csrf, event: JSON.stringify(event) });
  const answer = await fetch(`${at}/publish`, { method: "POST", body });
  const reply = await answer.json();
  if (answer.ok && reply.ok) go(next === "event" ? `event?id=${event.id}` : next);
  else say(reply.error || reply.message);
}

// NIP-86: the extension signs the call itself, the server only checks it.
async function call(button) {
  const { method, params, confirm: name, next } = button.dataset;
  if (!extension()) return;
  if (name && window.prompt(`This cannot be undone. Type ${name} to go on.`) !== name) return;
  const body = JSON.stringify({ method, params: JSON.parse(params) });
  const path = at.slice(0, -"/console".length) || "/";
  const answer = await fetch(path, {
    method: "POST",
    body,
    headers: { Authorization: await authorization(path, "POST", body), "Content-Type": "application/nostr+json+rpc" },
  });
  const reply = await answer.json();
  if (reply.error) say(reply.error);
  else if (typeof reply.result === "object" && reply.result.code) say(`Invite code: ${reply.result.code}`);
  else go(next);
}

async function save(button) {
  const text = document.getElementById("text");
  if (!extension()) return;
  if (text.value !== text.defaultValue) return say("The text was changed: check it first.");
  const { name, before } = button.dataset;
  const body = new URLSearchParams({ csrf, name, before, text: text.value }).toString();
  const path = `${at}/policy-save`;
  const answer = await fetch(path, {
    method: "POST",
    body,
    headers: { Authorization: await authorization(path, "POST", body), "Content-Type": "application/x-www-form-urlencoded" },
  });
  const reply = await answer.json();
  if (reply.error) say(reply.error);
  else location.assign(`${at}/policy-file?${new URLSearchParams({ name })}`);
}

document.addEventListener("click", async (click) => {
  const button = click.target.closest("button");
  if (!button) return;
  try {
    if (button.dataset.copy !== undefined) {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } else if (button.id === "sign-in") await signIn();
    else if (button.classList.contains("act")) await act(button);
    else if (button.classList.contains("call")) await call(button);
    else if (button.classList.contains("save")) await save(button);
  } catch (error) {
    say(String(error && error.message ? error.message : error));
  }
});

// Parts marked data-live are asked for again as part of their own page, while somebody looks.
async function refresh() {
  const parts = [...document.querySelectorAll("[data-live][id]")];
  if (document.hidden || !parts.length || document.querySelector("[data-live] :focus")) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const fresh = next.getElementById(part.id);
    if (!fresh) continue;
    localTimes(fresh);
    if (fresh.innerHTML === part.innerHTML) continue;
    const list = part.querySelector(".chat");
    const atEnd = list && list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
    part.replaceChildren(...fresh.childNodes);
    if (atEnd) scrollToEnd();
  }
}

function scrollToEnd() {
  for (const list of document.querySelectorAll(".chat")) list.scrollTop = list.scrollHeight;
}

// On a narrow screen the menu is wider than the page.
const menu = document.querySelector("header nav");
const current = menu.querySelector("[aria-current]");
if (current && current.offsetLeft + current.offsetWidth > menu.clientWidth) menu.scrollLeft = current.offsetLeft - 40;

localTimes(document);
scrollToEnd();
if (document.querySelector("[data-live]")) setInterval(() => refresh().catch(() => {}), 3000);
