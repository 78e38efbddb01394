CREATE TABLE IF NOT EXISTS run_search (
	run_id BIGINT NOT NULL,
	words TEXT NOT NULL,
	PRIMARY KEY (run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE FULLTEXT INDEX ft_run_search_words ON run_search (words);
