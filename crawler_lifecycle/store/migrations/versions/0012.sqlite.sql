CREATE TABLE IF NOT EXISTS site (
	site VARCHAR(255) NOT NULL,
	limits JSON,
	origin VARCHAR(20),
	changed_at DATETIME,
	changed_by VARCHAR(255),
	closed_until FLOAT NOT NULL,
	closures INTEGER NOT NULL,
	closed_by_run BIGINT,
	closed_by VARCHAR(255),
	closed_status INTEGER,
	lane_wanted_until FLOAT NOT NULL,
	crawl_delay FLOAT,
	has_tickets BOOLEAN NOT NULL,
	PRIMARY KEY (site),
	CONSTRAINT ck_site_times CHECK (changed_at IS NULL OR changed_at >= '1970-01-01' AND changed_at < '2101-01-01'),
	CONSTRAINT ck_site_json CHECK (limits IS NULL OR json_type(limits) = 'object'),
	CONSTRAINT ck_site_types CHECK (typeof(site) = 'text' AND (origin IS NULL OR typeof(origin) = 'text') AND (changed_at IS NULL OR changed_at LIKE '____-__-__ __:__:__%' AND datetime(changed_at) IS NOT NULL) AND (changed_by IS NULL OR typeof(changed_by) = 'text') AND typeof(closed_until) = 'real' AND typeof(closures) = 'integer' AND (closed_by_run IS NULL OR typeof(closed_by_run) = 'integer') AND (closed_by IS NULL OR typeof(closed_by) = 'text') AND (closed_status IS NULL OR typeof(closed_status) = 'integer') AND typeof(lane_wanted_until) = 'real' AND (crawl_delay IS NULL OR typeof(crawl_delay) = 'real') AND typeof(has_tickets) = 'integer')
);

CREATE INDEX ix_site_closures ON site (closures);

CREATE INDEX ix_site_has_tickets ON site (has_tickets);

CREATE TABLE IF NOT EXISTS site_block (
	block_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	site VARCHAR(255) NOT NULL,
	at FLOAT NOT NULL,
	run_id BIGINT,
	task_index INTEGER,
	person VARCHAR(255),
	status INTEGER,
	retry_after_s FLOAT,
	closed_until FLOAT NOT NULL,
	CONSTRAINT ck_site_block_numbers CHECK (task_index IS NULL OR task_index >= 0),
	CONSTRAINT ck_site_block_types CHECK (typeof(block_id) = 'integer' AND typeof(site) = 'text' AND typeof(at) = 'real' AND (run_id IS NULL OR typeof(run_id) = 'integer') AND (task_index IS NULL OR typeof(task_index) = 'integer') AND (person IS NULL OR typeof(person) = 'text') AND (status IS NULL OR typeof(status) = 'integer') AND (retry_after_s IS NULL OR typeof(retry_after_s) = 'real') AND typeof(closed_until) = 'real')
);

CREATE INDEX ix_site_block_at ON site_block (at);

CREATE INDEX ix_site_block_site_block_id ON site_block (site, block_id);

CREATE TABLE IF NOT EXISTS site_day (
	site VARCHAR(255) NOT NULL,
	day INTEGER NOT NULL,
	proxies JSON NOT NULL,
	PRIMARY KEY (site, day),
	CONSTRAINT ck_site_day_json CHECK (json_type(proxies) = 'object'),
	CONSTRAINT ck_site_day_types CHECK (typeof(site) = 'text' AND typeof(day) = 'integer')
);

CREATE INDEX ix_site_day_day ON site_day (day);

CREATE TABLE IF NOT EXISTS site_lease (
	site VARCHAR(255) NOT NULL,
	lane INTEGER NOT NULL,
	holder VARCHAR(60) NOT NULL,
	since FLOAT NOT NULL,
	until FLOAT NOT NULL,
	leaves BOOLEAN NOT NULL,
	PRIMARY KEY (site, lane),
	CONSTRAINT ck_site_lease_types CHECK (typeof(site) = 'text' AND typeof(lane) = 'integer' AND typeof(holder) = 'text' AND typeof(since) = 'real' AND typeof(until) = 'real' AND typeof(leaves) = 'integer')
);

CREATE TABLE IF NOT EXISTS site_minute (
	site VARCHAR(255) NOT NULL,
	minute INTEGER NOT NULL,
	requests INTEGER NOT NULL,
	statuses JSON NOT NULL,
	PRIMARY KEY (site, minute),
	CONSTRAINT ck_site_minute_json CHECK (json_type(statuses) = 'object'),
	CONSTRAINT ck_site_minute_types CHECK (typeof(site) = 'text' AND typeof(minute) = 'integer' AND typeof(requests) = 'integer')
);

CREATE INDEX ix_site_minute_minute ON site_minute (minute);

CREATE TABLE IF NOT EXISTS site_robots (
	origin VARCHAR(300) NOT NULL,
	site VARCHAR(255) NOT NULL,
	claimed_by VARCHAR(60) NOT NULL,
	claimed_until FLOAT NOT NULL,
	fetched_at FLOAT NOT NULL,
	valid_until FLOAT NOT NULL,
	run_id BIGINT,
	status INTEGER,
	sha256 VARCHAR(64),
	size INTEGER,
	body BLOB,
	crawl_delay FLOAT,
	tdm_reserved BOOLEAN,
	tdm_policy VARCHAR(1000),
	PRIMARY KEY (origin),
	CONSTRAINT ck_site_robots_types CHECK (typeof(origin) = 'text' AND typeof(site) = 'text' AND typeof(claimed_by) = 'text' AND typeof(claimed_until) = 'real' AND typeof(fetched_at) = 'real' AND typeof(valid_until) = 'real' AND (run_id IS NULL OR typeof(run_id) = 'integer') AND (status IS NULL OR typeof(status) = 'integer') AND (sha256 IS NULL OR typeof(sha256) = 'text') AND (size IS NULL OR typeof(size) = 'integer') AND (crawl_delay IS NULL OR typeof(crawl_delay) = 'real') AND (tdm_reserved IS NULL OR typeof(tdm_reserved) = 'integer') AND (tdm_policy IS NULL OR typeof(tdm_policy) = 'text'))
);

CREATE INDEX ix_site_robots_site ON site_robots (site);

CREATE INDEX ix_site_robots_valid_until ON site_robots (valid_until);

CREATE TABLE IF NOT EXISTS run_robots (
	run_id INTEGER NOT NULL,
	host VARCHAR(255) NOT NULL,
	sha256 VARCHAR(64),
	crawl_delay FLOAT,
	refused BIGINT NOT NULL,
	PRIMARY KEY (run_id, host),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_run_robots_types CHECK (typeof(run_id) = 'integer' AND typeof(host) = 'text' AND (sha256 IS NULL OR typeof(sha256) = 'text') AND (crawl_delay IS NULL OR typeof(crawl_delay) = 'real') AND typeof(refused) = 'integer')
);

CREATE TABLE IF NOT EXISTS run_site (
	run_id INTEGER NOT NULL,
	host VARCHAR(255) NOT NULL,
	site VARCHAR(255) NOT NULL,
	PRIMARY KEY (run_id, host),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_run_site_types CHECK (typeof(run_id) = 'integer' AND typeof(host) = 'text' AND typeof(site) = 'text')
);

CREATE TABLE IF NOT EXISTS site_report (
	run_id INTEGER NOT NULL,
	task_index INTEGER NOT NULL,
	marks VARCHAR(400) NOT NULL,
	at FLOAT NOT NULL,
	PRIMARY KEY (run_id, task_index),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_site_report_types CHECK (typeof(run_id) = 'integer' AND typeof(task_index) = 'integer' AND typeof(marks) = 'text' AND typeof(at) = 'real')
);

CREATE INDEX ix_site_report_at ON site_report (at);

CREATE TABLE IF NOT EXISTS site_ticket (
	run_id INTEGER NOT NULL,
	site VARCHAR(255) NOT NULL,
	priority INTEGER NOT NULL,
	since DATETIME NOT NULL,
	wanted INTEGER NOT NULL,
	called_at DATETIME,
	PRIMARY KEY (run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_site_ticket_times CHECK (since >= '1970-01-01' AND since < '2101-01-01' AND (called_at IS NULL OR called_at >= '1970-01-01' AND called_at < '2101-01-01')),
	CONSTRAINT ck_site_ticket_types CHECK (typeof(run_id) = 'integer' AND typeof(site) = 'text' AND typeof(priority) = 'integer' AND since LIKE '____-__-__ __:__:__%' AND datetime(since) IS NOT NULL AND typeof(wanted) = 'integer' AND (called_at IS NULL OR called_at LIKE '____-__-__ __:__:__%' AND datetime(called_at) IS NOT NULL))
);

CREATE INDEX ix_site_ticket_called_at ON site_ticket (called_at);

CREATE INDEX ix_site_ticket_site_priority_since_run_id ON site_ticket (site, priority, since, run_id);
