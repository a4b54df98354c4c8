-- The text index: it follows the log, and is rebuilt when its rules change.

CREATE TABLE texts (
    seq        bigint  PRIMARY KEY,       -- of the event
    created_at bigint  NOT NULL,
    id_key     bigint  NOT NULL,
    thread     bigint  NOT NULL,          -- what its author stored that day under the same `d`
    once       integer NOT NULL,          -- the score of a word in it that occurs once,
    repeated   integer NOT NULL,          -- twice,
    frequent   integer NOT NULL,          -- four times
    words      text COLLATE "C" NOT NULL, -- tokens in their order, separated by spaces
    words_repeated text COLLATE "C" NOT NULL,  -- of words that occur at least twice
    words_frequent text COLLATE "C" NOT NULL   -- of words that occur at least four times
);
CREATE INDEX texts_words ON texts USING gin (string_to_array(words, ' '));

INSERT INTO meta (name, value) VALUES ('search_upto', '0'), ('search_rules', '');
