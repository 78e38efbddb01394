CREATE TABLE IF NOT EXISTS run_word (
	run_id INTEGER NOT NULL,
	word VARCHAR(60) NOT NULL,
	PRIMARY KEY (run_id, word),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_run_word_types CHECK (typeof(run_id) = 'integer' AND typeof(word) = 'text')
)
 WITHOUT ROWID;

CREATE INDEX ix_run_word_word_run_id ON run_word (word, run_id);
