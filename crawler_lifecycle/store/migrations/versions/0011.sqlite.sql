CREATE TABLE IF NOT EXISTS run_search (
	run_id INTEGER NOT NULL,
	words TEXT NOT NULL,
	PRIMARY KEY (run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_run_search_types CHECK (typeof(run_id) = 'integer' AND typeof(words) = 'text')
);

CREATE VIRTUAL TABLE IF NOT EXISTS run_word USING fts5(words, content='run_search', content_rowid='run_id', detail=none, columnsize=0, tokenize="ascii tokenchars '_'");

CREATE TRIGGER IF NOT EXISTS run_search_insert AFTER INSERT ON run_search BEGIN INSERT INTO run_word (rowid, words) VALUES (new.run_id, new.words); END;

CREATE TRIGGER IF NOT EXISTS run_search_delete AFTER DELETE ON run_search BEGIN INSERT INTO run_word (run_word, rowid, words) VALUES ('delete', old.run_id, old.words); END;

CREATE TRIGGER IF NOT EXISTS run_search_update AFTER UPDATE ON run_search BEGIN INSERT INTO run_word (run_word, rowid, words) VALUES ('delete', old.run_id, old.words); INSERT INTO run_word (rowid, words) VALUES (new.run_id, new.words); END;
