CREATE TABLE IF NOT EXISTS pool (
	name VARCHAR(63) NOT NULL,
	document JSON NOT NULL,
	changed_at DATETIME(6) NOT NULL,
	changed_by VARCHAR(255),
	PRIMARY KEY (name),
	CONSTRAINT ck_pool_times CHECK (changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_pool_json CHECK (json_type(document) = 'OBJECT')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
