CREATE TABLE IF NOT EXISTS pool (
	name VARCHAR(63) NOT NULL,
	document JSON NOT NULL,
	changed_at DATETIME NOT NULL,
	changed_by VARCHAR(255),
	PRIMARY KEY (name),
	CONSTRAINT ck_pool_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_pool_json CHECK (json_type(document) = 'object'),
	CONSTRAINT ck_pool_types CHECK (typeof(name) = 'text' AND changed_at LIKE '____-__-__ __:__:__%' AND datetime(changed_at) IS NOT NULL AND (changed_by IS NULL OR typeof(changed_by) = 'text'))
);
