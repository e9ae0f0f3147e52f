-- What the console keeps. Everything here can be lost: it is read again from the history as far as Redis still holds it.
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- One row a turn, in the order in which turns came; contents stand aside so that lists stay small.
CREATE TABLE IF NOT EXISTS turns (
  seq INTEGER PRIMARY KEY,
  turn_id TEXT NOT NULL UNIQUE,
  session_id TEXT NOT NULL,
  turn_index INTEGER,
  tenant TEXT NOT NULL,
  time_ms INTEGER NOT NULL,
  stage TEXT NOT NULL,        -- linked, judged, scored, trained, dropped
  score INTEGER,
  hint TEXT,
  drop_stage TEXT,
  reason TEXT,
  detail TEXT,
  tokens INTEGER,
  advantage_mean REAL,
  step INTEGER,
  version INTEGER,            -- of the weights that answered
  text TEXT NOT NULL DEFAULT '',
  bytes INTEGER NOT NULL DEFAULT 0,
  change INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_session ON turns (session_id, seq, time_ms, score, tenant);
CREATE INDEX IF NOT EXISTS turns_stage ON turns (stage, seq);
CREATE INDEX IF NOT EXISTS turns_reason ON turns (reason, seq) WHERE reason IS NOT NULL;
CREATE INDEX IF NOT EXISTS turns_change ON turns (change);

-- Messages as they stood in the stream: turn, record, judged, sample, trained.
CREATE TABLE IF NOT EXISTS contents (seq INTEGER, kind TEXT, data BLOB NOT NULL, PRIMARY KEY (seq, kind));

CREATE VIRTUAL TABLE IF NOT EXISTS turn_texts USING fts5 (text, tokenize = "unicode61 remove_diacritics 2");

-- Advantages of a turn's tokens, counted by the bins of `histogram`.
CREATE TABLE IF NOT EXISTS histograms (
  seq INTEGER PRIMARY KEY, step INTEGER NOT NULL, counts BLOB NOT NULL,
  tokens INTEGER NOT NULL, positive INTEGER NOT NULL, negative INTEGER NOT NULL, far INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS histograms_step ON histograms (step);

CREATE TABLE IF NOT EXISTS drops (
  turn_id TEXT PRIMARY KEY, time_ms INTEGER NOT NULL, tenant TEXT NOT NULL,
  stage TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS drops_time ON drops (time_ms, stage, reason);

-- `given_up`: training went back to before this step.
CREATE TABLE IF NOT EXISTS steps (
  id INTEGER PRIMARY KEY, entry_id TEXT NOT NULL UNIQUE, step INTEGER NOT NULL, version INTEGER, time_ms INTEGER NOT NULL,
  figures TEXT NOT NULL, given_up INTEGER NOT NULL DEFAULT 0, change INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS steps_change ON steps (change);
CREATE TABLE IF NOT EXISTS versions (
  version INTEGER PRIMARY KEY, step INTEGER NOT NULL, parent INTEGER, run TEXT NOT NULL, weights_hash TEXT NOT NULL,
  reason TEXT NOT NULL, time_ms INTEGER NOT NULL, released INTEGER NOT NULL, change INTEGER NOT NULL,
  gate_outcome TEXT, gate_reasons TEXT, gate_figures TEXT
);
