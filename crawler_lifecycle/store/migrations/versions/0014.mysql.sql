CREATE TABLE IF NOT EXISTS package (
	package_id BIGINT NOT NULL AUTO_INCREMENT,
	name VARCHAR(63) NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	current VARCHAR(64) NOT NULL,
	changed_at DATETIME(6) NOT NULL,
	changed_by VARCHAR(255),
	PRIMARY KEY (package_id),
	CONSTRAINT uq_package_name UNIQUE (name),
	CONSTRAINT ck_package_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_package_project_name ON package (project, name);

CREATE TABLE IF NOT EXISTS package_version (
	version_id BIGINT NOT NULL AUTO_INCREMENT,
	package VARCHAR(63) NOT NULL,
	version VARCHAR(64) NOT NULL,
	digest VARCHAR(71) NOT NULL,
	size INTEGER NOT NULL,
	files INTEGER NOT NULL,
	commit_id VARCHAR(64),
	spiders JSON NOT NULL,
	note VARCHAR(500),
	created_at DATETIME(6) NOT NULL,
	created_by VARCHAR(255),
	PRIMARY KEY (version_id),
	CONSTRAINT uq_package_version_package_version UNIQUE (package, version),
	CONSTRAINT ck_package_version_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01'),
	CONSTRAINT ck_package_version_json CHECK (json_type(spiders) = 'ARRAY')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_package_version_digest ON package_version (digest);
