CREATE TABLE IF NOT EXISTS catalogue_change (
	change_id BIGINT NOT NULL AUTO_INCREMENT,
	name VARCHAR(63) NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	number INTEGER NOT NULL,
	document JSON NOT NULL,
	changed_at DATETIME(6) NOT NULL,
	changed_by VARCHAR(255),
	note VARCHAR(200),
	PRIMARY KEY (change_id),
	CONSTRAINT uq_catalogue_change_name_number UNIQUE (name, number),
	CONSTRAINT ck_catalogue_change_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_catalogue_change_json CHECK (json_type(document) = 'OBJECT')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS catalogue_entry (
	entry_id BIGINT NOT NULL AUTO_INCREMENT,
	name VARCHAR(63) NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	number INTEGER NOT NULL,
	package VARCHAR(63),
	changed_at DATETIME(6) NOT NULL,
	changed_by VARCHAR(255),
	PRIMARY KEY (entry_id),
	CONSTRAINT uq_catalogue_entry_name UNIQUE (name),
	CONSTRAINT ck_catalogue_entry_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_catalogue_entry_package ON catalogue_entry (package);

CREATE INDEX ix_catalogue_entry_project_name ON catalogue_entry (project, name);
