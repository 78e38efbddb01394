CREATE TABLE IF NOT EXISTS site (
	site VARCHAR(255) NOT NULL,
	limits JSON,
	origin VARCHAR(20),
	changed_at DATETIME(6),
	changed_by VARCHAR(255),
	closed_until FLOAT(53) NOT NULL,
	closures INTEGER NOT NULL,
	closed_by_run BIGINT,
	closed_by VARCHAR(255),
	closed_status INTEGER,
	lane_wanted_until FLOAT(53) NOT NULL,
	crawl_delay FLOAT(53),
	has_tickets BOOL NOT NULL,
	PRIMARY KEY (site),
	CONSTRAINT ck_site_times CHECK (changed_at IS NULL OR changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_site_json CHECK (limits IS NULL OR json_type(limits) = 'OBJECT')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_closures ON site (closures);

CREATE INDEX ix_site_has_tickets ON site (has_tickets);

CREATE TABLE IF NOT EXISTS site_block (
	block_id BIGINT NOT NULL AUTO_INCREMENT,
	site VARCHAR(255) NOT NULL,
	at FLOAT(53) NOT NULL,
	run_id BIGINT,
	task_index INTEGER,
	person VARCHAR(255),
	status INTEGER,
	retry_after_s FLOAT(53),
	closed_until FLOAT(53) NOT NULL,
	PRIMARY KEY (block_id),
	CONSTRAINT ck_site_block_numbers CHECK (task_index IS NULL OR task_index >= 0)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_block_at ON site_block (at);

CREATE INDEX ix_site_block_site_block_id ON site_block (site, block_id);

CREATE TABLE IF NOT EXISTS site_day (
	site VARCHAR(255) NOT NULL,
	day INTEGER NOT NULL,
	proxies JSON NOT NULL,
	PRIMARY KEY (site, day),
	CONSTRAINT ck_site_day_json CHECK (json_type(proxies) = 'OBJECT')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_day_day ON site_day (day);

CREATE TABLE IF NOT EXISTS site_lease (
	site VARCHAR(255) NOT NULL,
	lane INTEGER NOT NULL,
	holder VARCHAR(60) NOT NULL,
	since FLOAT(53) NOT NULL,
	until FLOAT(53) NOT NULL,
	leaves BOOL NOT NULL,
	PRIMARY KEY (site, lane)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS site_minute (
	site VARCHAR(255) NOT NULL,
	minute INTEGER NOT NULL,
	requests INTEGER NOT NULL,
	statuses JSON NOT NULL,
	PRIMARY KEY (site, minute),
	CONSTRAINT ck_site_minute_json CHECK (json_type(statuses) = 'OBJECT')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_minute_minute ON site_minute (minute);

CREATE TABLE IF NOT EXISTS site_robots (
	origin VARCHAR(300) NOT NULL,
	site VARCHAR(255) NOT NULL,
	claimed_by VARCHAR(60) NOT NULL,
	claimed_until FLOAT(53) NOT NULL,
	fetched_at FLOAT(53) NOT NULL,
	valid_until FLOAT(53) NOT NULL,
	run_id BIGINT,
	status INTEGER,
	sha256 VARCHAR(64),
	size INTEGER,
	body MEDIUMBLOB,
	crawl_delay FLOAT(53),
	tdm_reserved BOOL,
	tdm_policy VARCHAR(1000),
	PRIMARY KEY (origin)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_robots_site ON site_robots (site);

CREATE INDEX ix_site_robots_valid_until ON site_robots (valid_until);

CREATE TABLE IF NOT EXISTS run_robots (
	run_id BIGINT NOT NULL,
	host VARCHAR(255) NOT NULL,
	sha256 VARCHAR(64),
	crawl_delay FLOAT(53),
	refused BIGINT NOT NULL,
	PRIMARY KEY (run_id, host),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS run_site (
	run_id BIGINT NOT NULL,
	host VARCHAR(255) NOT NULL,
	site VARCHAR(255) NOT NULL,
	PRIMARY KEY (run_id, host),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS site_report (
	run_id BIGINT NOT NULL,
	task_index INTEGER NOT NULL,
	marks VARCHAR(400) NOT NULL,
	at FLOAT(53) NOT NULL,
	PRIMARY KEY (run_id, task_index),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_report_at ON site_report (at);

CREATE TABLE IF NOT EXISTS site_ticket (
	run_id BIGINT NOT NULL,
	site VARCHAR(255) NOT NULL,
	priority INTEGER NOT NULL,
	since DATETIME(6) NOT NULL,
	wanted INTEGER NOT NULL,
	called_at DATETIME(6),
	PRIMARY KEY (run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_site_ticket_times CHECK (since >= '1970-01-01' AND since < '2101-01-01' AND (called_at IS NULL OR called_at >= '1970-01-01' AND called_at < '2101-01-01'))
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_site_ticket_called_at ON site_ticket (called_at);

CREATE INDEX ix_site_ticket_site_priority_since_run_id ON site_ticket (site, priority, since, run_id);
