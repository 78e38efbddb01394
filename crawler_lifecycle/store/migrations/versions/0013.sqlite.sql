CREATE TABLE IF NOT EXISTS run_code (
	code_digest VARCHAR(71) NOT NULL,
	run_id INTEGER NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	code_version VARCHAR(100),
	code_commit VARCHAR(64),
	code_note VARCHAR(200),
	PRIMARY KEY (code_digest, run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_run_code_types CHECK (typeof(code_digest) = 'text' AND typeof(run_id) = 'integer' AND typeof(project) = 'text' AND (code_version IS NULL OR typeof(code_version) = 'text') AND (code_commit IS NULL OR typeof(code_commit) = 'text') AND (code_note IS NULL OR typeof(code_note) = 'text'))
);

CREATE INDEX ix_run_code_project_code_digest_run_id ON run_code (project, code_digest, run_id);

CREATE INDEX ix_run_code_run_id ON run_code (run_id);
