CREATE TABLE IF NOT EXISTS run_code (
	code_digest VARCHAR(71) NOT NULL,
	run_id BIGINT NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	code_version VARCHAR(100),
	code_commit VARCHAR(64),
	code_note VARCHAR(200),
	PRIMARY KEY (code_digest, run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_run_code_project_code_digest_run_id ON run_code (project, code_digest, run_id);

CREATE INDEX ix_run_code_run_id ON run_code (run_id);
