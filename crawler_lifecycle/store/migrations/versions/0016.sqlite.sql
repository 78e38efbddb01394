CREATE TABLE IF NOT EXISTS canary (
	canary_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	canary_uid VARCHAR(32) NOT NULL,
	package VARCHAR(63) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	old_version VARCHAR(64) NOT NULL,
	old_digest VARCHAR(71) NOT NULL,
	new_version VARCHAR(64) NOT NULL,
	new_digest VARCHAR(71) NOT NULL,
	share FLOAT NOT NULL,
	runs INTEGER NOT NULL,
	judge JSON NOT NULL,
	state VARCHAR(10) NOT NULL,
	holder VARCHAR(63),
	asked INTEGER NOT NULL,
	given INTEGER NOT NULL,
	after_run_id BIGINT NOT NULL,
	created_at DATETIME NOT NULL,
	created_by VARCHAR(255),
	ended_at DATETIME,
	ended_by VARCHAR(255),
	result TEXT,
	CONSTRAINT uq_canary_holder UNIQUE (holder),
	CONSTRAINT ck_canary_words CHECK (state IN ('open', 'accepted', 'rejected', 'cancelled')),
	CONSTRAINT ck_canary_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01' AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01')),
	CONSTRAINT ck_canary_json CHECK (json_type(judge) = 'array'),
	CONSTRAINT ck_canary_types CHECK (typeof(canary_id) = 'integer' AND typeof(canary_uid) = 'text' AND typeof(package) = 'text' AND typeof(project) = 'text' AND typeof(old_version) = 'text' AND typeof(old_digest) = 'text' AND typeof(new_version) = 'text' AND typeof(new_digest) = 'text' AND typeof(share) = 'real' AND typeof(runs) = 'integer' AND typeof(state) = 'text' AND (holder IS NULL OR typeof(holder) = 'text') AND typeof(asked) = 'integer' AND typeof(given) = 'integer' AND typeof(after_run_id) = 'integer' AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND (created_by IS NULL OR typeof(created_by) = 'text') AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL) AND (ended_by IS NULL OR typeof(ended_by) = 'text') AND (result IS NULL OR typeof(result) = 'text'))
);

CREATE INDEX ix_canary_package_canary_id ON canary (package, canary_id);

CREATE INDEX ix_canary_project_canary_id ON canary (project, canary_id);

CREATE INDEX ix_canary_state_canary_id ON canary (state, canary_id);
