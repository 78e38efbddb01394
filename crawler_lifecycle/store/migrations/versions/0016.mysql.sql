CREATE TABLE IF NOT EXISTS canary (
	canary_id BIGINT NOT NULL AUTO_INCREMENT,
	canary_uid VARCHAR(32) NOT NULL,
	package VARCHAR(63) NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	old_version VARCHAR(64) NOT NULL,
	old_digest VARCHAR(71) NOT NULL,
	new_version VARCHAR(64) NOT NULL,
	new_digest VARCHAR(71) NOT NULL,
	share FLOAT(53) NOT NULL,
	runs INTEGER NOT NULL,
	judge JSON NOT NULL,
	state VARCHAR(10) NOT NULL,
	holder VARCHAR(63),
	asked INTEGER NOT NULL,
	given INTEGER NOT NULL,
	after_run_id BIGINT NOT NULL,
	created_at DATETIME(6) NOT NULL,
	created_by VARCHAR(255),
	ended_at DATETIME(6),
	ended_by VARCHAR(255),
	result TEXT,
	PRIMARY KEY (canary_id),
	CONSTRAINT uq_canary_holder UNIQUE (holder),
	CONSTRAINT ck_canary_words CHECK (state IN ('open', 'accepted', 'rejected', 'cancelled')),
	CONSTRAINT ck_canary_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01' AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01')),
	CONSTRAINT ck_canary_json CHECK (json_type(judge) = 'ARRAY')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_canary_package_canary_id ON canary (package, canary_id);

CREATE INDEX ix_canary_project_canary_id ON canary (project, canary_id);

CREATE INDEX ix_canary_state_canary_id ON canary (state, canary_id);
