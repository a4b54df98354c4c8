-- Who was a member when a group ended. Of groups that ended earlier nothing is known: they stay guarded.
CREATE TABLE former_members (
    pubkey BLOB    NOT NULL,
    grp    TEXT    NOT NULL,
    PRIMARY KEY (pubkey, grp)
) WITHOUT ROWID
