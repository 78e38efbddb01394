CREATE TABLE IF NOT EXISTS run_word (
	run_id BIGINT NOT NULL,
	word VARCHAR(60) NOT NULL,
	PRIMARY KEY (run_id, word),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_run_word_word_run_id ON run_word (word, run_id);
