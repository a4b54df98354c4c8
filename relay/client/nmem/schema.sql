-- nmem's own tables (M-08), readable by other nmem programs.

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    project TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    signature TEXT,
    summary TEXT
);

CREATE TABLE prompts (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    timestamp INTEGER NOT NULL,
    source TEXT NOT NULL,
    content TEXT NOT NULL
);

CREATE TABLE observations (
    id INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    prompt_id INTEGER REFERENCES prompts(id),
    timestamp INTEGER NOT NULL,
    obs_type TEXT NOT NULL,
    source_event TEXT NOT NULL,
    tool_name TEXT,
    file_path TEXT,
    content TEXT NOT NULL,
    metadata TEXT,
    is_pinned INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE _cursor (
    session_id TEXT PRIMARY KEY,
    line_number INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX idx_obs_dedup ON observations(session_id, obs_type, file_path, timestamp);
CREATE INDEX idx_obs_session ON observations(session_id, timestamp);
CREATE INDEX idx_obs_prompt ON observations(prompt_id);
CREATE INDEX idx_obs_type ON observations(obs_type);
CREATE INDEX idx_obs_file ON observations(file_path) WHERE file_path IS NOT NULL;
CREATE INDEX idx_prompts_session ON prompts(session_id, id);

CREATE VIRTUAL TABLE observations_fts USING fts5(
    content, content='observations', content_rowid='id', tokenize='porter unicode61'
);

CREATE TRIGGER observations_fts_insert AFTER INSERT ON observations BEGIN
    INSERT INTO observations_fts(rowid, content) VALUES (new.id, new.content);
END;

CREATE TRIGGER observations_fts_delete AFTER DELETE ON observations BEGIN
    INSERT INTO observations_fts(observations_fts, rowid, content)
    VALUES ('delete', old.id, old.content);
END;

CREATE TRIGGER observations_fts_update AFTER UPDATE ON observations BEGIN
    INSERT INTO observations_fts(observations_fts, rowid, content)
    VALUES ('delete', old.id, old.content);
    INSERT INTO observations_fts(rowid, content) VALUES (new.id, new.content);
END;

CREATE VIRTUAL TABLE prompts_fts USING fts5(
    content, content='prompts', content_rowid='id', tokenize='porter unicode61'
);

CREATE TRIGGER prompts_fts_insert AFTER INSERT ON prompts BEGIN
    INSERT INTO prompts_fts(rowid, content) VALUES (new.id, new.content);
END;

CREATE TRIGGER prompts_fts_delete AFTER DELETE ON prompts BEGIN
    INSERT INTO prompts_fts(prompts_fts, rowid, content)
    VALUES ('delete', old.id, old.content);
END;

-- Our tables: the event of each row, and the outbox. `author` is empty for local rows,
-- `event_id` is NULL before signing.

CREATE TABLE _rk_about (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE _rk_sessions (
    session_id TEXT NOT NULL,
    author TEXT NOT NULL,
    event_id TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (session_id, author)
) WITHOUT ROWID;

CREATE TABLE _rk_prompts (
    prompt_id INTEGER PRIMARY KEY,
    d TEXT NOT NULL UNIQUE,
    author TEXT NOT NULL,
    event_id TEXT UNIQUE,
    created_at INTEGER NOT NULL
);

CREATE TABLE _rk_observations (
    observation_id INTEGER PRIMARY KEY,
    d TEXT NOT NULL UNIQUE,
    author TEXT NOT NULL,
    event_id TEXT UNIQUE,
    created_at INTEGER NOT NULL
);

-- Observations whose prompt is not in the cache yet; `prompt`: its `d`.
CREATE TABLE _rk_unlinked (
    observation_id INTEGER PRIMARY KEY REFERENCES observations(id) ON DELETE CASCADE,
    prompt TEXT NOT NULL
);
CREATE INDEX _rk_idx_unlinked ON _rk_unlinked(prompt);

CREATE TABLE _rk_pins (
    target TEXT NOT NULL,
    author TEXT NOT NULL,
    event_id TEXT,
    is_pinned INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (target, author)
) WITHOUT ROWID;

-- Events at the relay intentionally without a row: swept, unreadable, or copies of another row.
CREATE TABLE _rk_passed_over (
    event_id TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE _rk_outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL,
    d TEXT NOT NULL,
    tags TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    refusal TEXT
);
CREATE UNIQUE INDEX _rk_idx_outbox ON _rk_outbox(kind, d) WHERE d <> '';

-- Bytes read of each transcript; `_cursor` counts lines.
CREATE TABLE _rk_read_to (
    session_id TEXT PRIMARY KEY,
    offset INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE _rk_tasks (
    id INTEGER PRIMARY KEY,
    queued_at INTEGER NOT NULL,
    not_before INTEGER,
    project TEXT,
    cwd TEXT,
    prompt TEXT NOT NULL
);
