CREATE TABLE IF NOT EXISTS catalogue_change (
	change_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name VARCHAR(63) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	number INTEGER NOT NULL,
	document JSON NOT NULL,
	changed_at DATETIME NOT NULL,
	changed_by VARCHAR(255),
	note VARCHAR(200),
	CONSTRAINT uq_catalogue_change_name_number UNIQUE (name, number),
	CONSTRAINT ck_catalogue_change_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_catalogue_change_json CHECK (json_type(document) = 'object'),
	CONSTRAINT ck_catalogue_change_types CHECK (typeof(change_id) = 'integer' AND typeof(name) = 'text' AND typeof(project) = 'text' AND typeof(number) = 'integer' AND changed_at LIKE '____-__-__ __:__:__%' AND datetime(changed_at) IS NOT NULL AND (changed_by IS NULL OR typeof(changed_by) = 'text') AND (note IS NULL OR typeof(note) = 'text'))
);

CREATE TABLE IF NOT EXISTS catalogue_entry (
	entry_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name VARCHAR(63) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	number INTEGER NOT NULL,
	package VARCHAR(63),
	changed_at DATETIME NOT NULL,
	changed_by VARCHAR(255),
	CONSTRAINT uq_catalogue_entry_name UNIQUE (name),
	CONSTRAINT ck_catalogue_entry_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_catalogue_entry_types CHECK (typeof(entry_id) = 'integer' AND typeof(name) = 'text' AND typeof(project) = 'text' AND typeof(number) = 'integer' AND (package IS NULL OR typeof(package) = 'text') AND changed_at LIKE '____-__-__ __:__:__%' AND datetime(changed_at) IS NOT NULL AND (changed_by IS NULL OR typeof(changed_by) = 'text'))
);

CREATE INDEX ix_catalogue_entry_package ON catalogue_entry (package);

CREATE INDEX ix_catalogue_entry_project_name ON catalogue_entry (project, name);
