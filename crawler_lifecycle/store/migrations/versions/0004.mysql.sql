CREATE TABLE IF NOT EXISTS access_log (
	id BIGINT NOT NULL AUTO_INCREMENT,
	at DATETIME(6) NOT NULL,
	project VARCHAR(63) NOT NULL,
	caller VARCHAR(100),
	caller_project VARCHAR(63) NOT NULL,
	operation VARCHAR(64) NOT NULL,
	verb VARCHAR(60),
	kind VARCHAR(20),
	subject VARCHAR(200),
	subject_uid VARCHAR(32),
	address VARCHAR(64),
	status INTEGER,
	outcome VARCHAR(64) NOT NULL,
	requests INTEGER NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT ck_access_log_times CHECK (at >= '1970-01-01' AND at < '2101-01-01')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_access_log_at ON access_log (at);

CREATE INDEX ix_access_log_caller_at ON access_log (caller, at);

CREATE INDEX ix_access_log_operation_at ON access_log (operation, at);

CREATE INDEX ix_access_log_outcome_at ON access_log (outcome, at);

CREATE INDEX ix_access_log_project_at ON access_log (project, at);

CREATE INDEX ix_access_log_subject_at ON access_log (subject, at);

CREATE TABLE IF NOT EXISTS access_token (
	token_id BIGINT NOT NULL AUTO_INCREMENT,
	name VARCHAR(64) NOT NULL,
	`role` VARCHAR(20) NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	sha256 VARCHAR(64) NOT NULL,
	created_by VARCHAR(255),
	created_at DATETIME(6) NOT NULL,
	expires_at DATETIME(6),
	used_at DATETIME(6),
	revoked_at DATETIME(6),
	PRIMARY KEY (token_id),
	CONSTRAINT uq_access_token_name UNIQUE (name),
	CONSTRAINT uq_access_token_sha256 UNIQUE (sha256),
	CONSTRAINT ck_access_token_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01' AND (expires_at IS NULL OR expires_at >= '1970-01-01' AND expires_at < '2101-01-01') AND (used_at IS NULL OR used_at >= '1970-01-01' AND used_at < '2101-01-01') AND (revoked_at IS NULL OR revoked_at >= '1970-01-01' AND revoked_at < '2101-01-01'))
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
