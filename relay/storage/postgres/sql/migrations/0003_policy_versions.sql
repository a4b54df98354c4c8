-- Policy files for all relays on the database.

CREATE TABLE policy_versions (
    version bigint  PRIMARY KEY,
    at      bigint  NOT NULL,
    by      text    NOT NULL,
    message text    NOT NULL,
    sha256  text    NOT NULL,
    number  integer NOT NULL,
    bytes   bigint  NOT NULL,
    files   bytea   NOT NULL
);
