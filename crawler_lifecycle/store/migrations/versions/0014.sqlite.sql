CREATE TABLE IF NOT EXISTS package (
	package_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name VARCHAR(63) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	current VARCHAR(64) NOT NULL,
	changed_at DATETIME NOT NULL,
	changed_by VARCHAR(255),
	CONSTRAINT uq_package_name UNIQUE (name),
	CONSTRAINT ck_package_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_package_types CHECK (typeof(package_id) = 'integer' AND typeof(name) = 'text' AND typeof(project) = 'text' AND typeof(current) = 'text' AND changed_at LIKE '____-__-__ __:__:__%' AND datetime(changed_at) IS NOT NULL AND (changed_by IS NULL OR typeof(changed_by) = 'text'))
);

CREATE INDEX ix_package_project_name ON package (project, name);

CREATE TABLE IF NOT EXISTS package_version (
	version_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	package VARCHAR(63) NOT NULL,
	version VARCHAR(64) NOT NULL,
	digest VARCHAR(71) NOT NULL,
	size INTEGER NOT NULL,
	files INTEGER NOT NULL,
	commit_id VARCHAR(64),
	spiders JSON NOT NULL,
	note VARCHAR(500),
	created_at DATETIME NOT NULL,
	created_by VARCHAR(255),
	CONSTRAINT uq_package_version_package_version UNIQUE (package, version),
	CONSTRAINT ck_package_version_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01'),
	CONSTRAINT ck_package_version_json CHECK (json_type(spiders) = 'array'),
	CONSTRAINT ck_package_version_types CHECK (typeof(version_id) = 'integer' AND typeof(package) = 'text' AND typeof(version) = 'text' AND typeof(digest) = 'text' AND typeof(size) = 'integer' AND typeof(files) = 'integer' AND (commit_id IS NULL OR typeof(commit_id) = 'text') AND (note IS NULL OR typeof(note) = 'text') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND (created_by IS NULL OR typeof(created_by) = 'text'))
);

CREATE INDEX ix_package_version_digest ON package_version (digest);
