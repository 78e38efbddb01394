CREATE TABLE IF NOT EXISTS access_log (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	at DATETIME NOT NULL,
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
	CONSTRAINT ck_access_log_times CHECK (at >= '1970-01-01' AND at < '2101-01-01'),
	CONSTRAINT ck_access_log_types CHECK (typeof(id) = 'integer' AND at LIKE '____-__-__ __:__:__%' AND datetime(at) IS NOT NULL AND typeof(project) = 'text' AND (caller IS NULL OR typeof(caller) = 'text') AND typeof(caller_project) = 'text' AND typeof(operation) = 'text' AND (verb IS NULL OR typeof(verb) = 'text') AND (kind IS NULL OR typeof(kind) = 'text') AND (subject IS NULL OR typeof(subject) = 'text') AND (subject_uid IS NULL OR typeof(subject_uid) = 'text') AND (address IS NULL OR typeof(address) = 'text') AND (status IS NULL OR typeof(status) = 'integer') AND typeof(outcome) = 'text' AND typeof(requests) = 'integer')
);

CREATE INDEX ix_access_log_at ON access_log (at);

CREATE INDEX ix_access_log_caller_at ON access_log (caller, at);

CREATE INDEX ix_access_log_operation_at ON access_log (operation, at);

CREATE INDEX ix_access_log_outcome_at ON access_log (outcome, at);

CREATE INDEX ix_access_log_project_at ON access_log (project, at);

CREATE INDEX ix_access_log_subject_at ON access_log (subject, at);

CREATE TABLE IF NOT EXISTS access_token (
	token_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name VARCHAR(64) NOT NULL,
	role VARCHAR(20) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	sha256 VARCHAR(64) NOT NULL,
	created_by VARCHAR(255),
	created_at DATETIME NOT NULL,
	expires_at DATETIME,
	used_at DATETIME,
	revoked_at DATETIME,
	CONSTRAINT uq_access_token_name UNIQUE (name),
	CONSTRAINT uq_access_token_sha256 UNIQUE (sha256),
	CONSTRAINT ck_access_token_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01' AND (expires_at IS NULL OR expires_at >= '1970-01-01' AND expires_at < '2101-01-01') AND (used_at IS NULL OR used_at >= '1970-01-01' AND used_at < '2101-01-01') AND (revoked_at IS NULL OR revoked_at >= '1970-01-01' AND revoked_at < '2101-01-01')),
	CONSTRAINT ck_access_token_types CHECK (typeof(token_id) = 'integer' AND typeof(name) = 'text' AND typeof(role) = 'text' AND typeof(project) = 'text' AND typeof(sha256) = 'text' AND (created_by IS NULL OR typeof(created_by) = 'text') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND (expires_at IS NULL OR expires_at LIKE '____-__-__ __:__:__%' AND datetime(expires_at) IS NOT NULL) AND (used_at IS NULL OR used_at LIKE '____-__-__ __:__:__%' AND datetime(used_at) IS NOT NULL) AND (revoked_at IS NULL OR revoked_at LIKE '____-__-__ __:__:__%' AND datetime(revoked_at) IS NOT NULL))
);
