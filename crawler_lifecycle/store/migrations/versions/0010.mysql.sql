CREATE TABLE IF NOT EXISTS incident (
	incident_id BIGINT NOT NULL AUTO_INCREMENT,
	incident_uid VARCHAR(32) NOT NULL,
	kind VARCHAR(30) NOT NULL,
	subject VARCHAR(220) NOT NULL,
	project VARCHAR(63) NOT NULL DEFAULT 'default',
	level VARCHAR(10) NOT NULL,
	state VARCHAR(10) NOT NULL,
	fingerprint VARCHAR(32) NOT NULL,
	open_key VARCHAR(32),
	cause VARCHAR(1000) NOT NULL,
	fix VARCHAR(1000),
	count INTEGER NOT NULL,
	first_run_id BIGINT,
	last_run_id BIGINT,
	opened_at DATETIME(6) NOT NULL,
	last_at DATETIME(6) NOT NULL,
	closed_at DATETIME(6),
	closed_by VARCHAR(100),
	reopened INTEGER NOT NULL,
	notified_count INTEGER NOT NULL,
	notices INTEGER NOT NULL,
	muted_until DATETIME(6),
	assignee VARCHAR(100),
	comment VARCHAR(1000),
	PRIMARY KEY (incident_id),
	CONSTRAINT uq_incident_open_key UNIQUE (open_key),
	CONSTRAINT ck_incident_times CHECK (opened_at >= '1970-01-01' AND opened_at < '2101-01-01' AND last_at >= '1970-01-01' AND last_at < '2101-01-01' AND (closed_at IS NULL OR closed_at >= '1970-01-01' AND closed_at < '2101-01-01') AND (muted_until IS NULL OR muted_until >= '1970-01-01' AND muted_until < '2101-01-01'))
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX ix_incident_project_incident_id ON incident (project, incident_id);

CREATE INDEX ix_incident_project_state_incident_id ON incident (project, state, incident_id);

CREATE INDEX ix_incident_state_incident_id ON incident (state, incident_id);

CREATE INDEX ix_incident_subject_incident_id ON incident (subject, incident_id);
