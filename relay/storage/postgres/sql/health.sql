-- :server  -> what an admin may have set, and how this connection came
SELECT current_setting('server_version_num')::integer AS version,
    current_setting('server_encoding') AS encoding,
    pg_is_in_recovery() AS is_replica,
    current_setting('transaction_read_only') = 'on' AS is_read_only,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('fsync') = 'on' AS fsync,
    current_setting('full_page_writes') = 'on' AS full_page_writes,
    current_setting('autovacuum') = 'on' AS autovacuum,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer AS places,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::integer AS taken,
    age((SELECT datfrozenxid FROM pg_database WHERE datname = current_database())) AS transactions,
    has_database_privilege('public', current_database(), 'CONNECT') AND EXISTS (
        SELECT FROM pg_roles WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
    ) AS is_open,
    current_database() AS name,
    pg_backend_pid() AS pid,
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS is_encrypted,
    coalesce(host(inet_server_addr()), '') AS address,
    coalesce((SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()), 0)::bigint AS open_s;

-- :system  -> the number that a server and its replicas have in common
SELECT system_identifier FROM pg_control_system();

-- :indices  -> name, whether it can be used
SELECT c.relname, i.indisvalid AND i.indisready FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace;

-- :tables  -> name, live rows, dead rows, whether its rows were ever counted for plans
SELECT relname, n_live_tup, n_dead_tup, coalesce(last_analyze, last_autoanalyze) IS NOT NULL
FROM pg_stat_user_tables WHERE schemaname = current_schema() ORDER BY relname;
