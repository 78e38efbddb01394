CREATE TABLE IF NOT EXISTS incident (
	incident_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	incident_uid VARCHAR(32) NOT NULL,
	kind VARCHAR(30) NOT NULL,
	subject VARCHAR(220) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	level VARCHAR(10) NOT NULL,
	state VARCHAR(10) NOT NULL,
	fingerprint VARCHAR(32) NOT NULL,
	open_key VARCHAR(32),
	cause VARCHAR(1000) NOT NULL,
	fix VARCHAR(1000),
	count INTEGER NOT NULL,
	first_run_id BIGINT,
	last_run_id BIGINT,
	opened_at DATETIME NOT NULL,
	last_at DATETIME NOT NULL,
	closed_at DATETIME,
	closed_by VARCHAR(100),
	reopened INTEGER NOT NULL,
	notified_count INTEGER NOT NULL,
	notices INTEGER NOT NULL,
	muted_until DATETIME,
	assignee VARCHAR(100),
	comment VARCHAR(1000),
	CONSTRAINT uq_incident_open_key UNIQUE (open_key),
	CONSTRAINT ck_incident_times CHECK (opened_at >= '1970-01-01' AND opened_at < '2101-01-01' AND last_at >= '1970-01-01' AND last_at < '2101-01-01' AND (closed_at IS NULL OR closed_at >= '1970-01-01' AND closed_at < '2101-01-01') AND (muted_until IS NULL OR muted_until >= '1970-01-01' AND muted_until < '2101-01-01')),
	CONSTRAINT ck_incident_types CHECK (typeof(incident_id) = 'integer' AND typeof(incident_uid) = 'text' AND typeof(kind) = 'text' AND typeof(subject) = 'text' AND typeof(project) = 'text' AND typeof(level) = 'text' AND typeof(state) = 'text' AND typeof(fingerprint) = 'text' AND (open_key IS NULL OR typeof(open_key) = 'text') AND typeof(cause) = 'text' AND (fix IS NULL OR typeof(fix) = 'text') AND typeof(count) = 'integer' AND (first_run_id IS NULL OR typeof(first_run_id) = 'integer') AND (last_run_id IS NULL OR typeof(last_run_id) = 'integer') AND opened_at LIKE '____-__-__ __:__:__%' AND datetime(opened_at) IS NOT NULL AND last_at LIKE '____-__-__ __:__:__%' AND datetime(last_at) IS NOT NULL AND (closed_at IS NULL OR closed_at LIKE '____-__-__ __:__:__%' AND datetime(closed_at) IS NOT NULL) AND (closed_by IS NULL OR typeof(closed_by) = 'text') AND typeof(reopened) = 'integer' AND typeof(notified_count) = 'integer' AND typeof(notices) = 'integer' AND (muted_until IS NULL OR muted_until LIKE '____-__-__ __:__:__%' AND datetime(muted_until) IS NOT NULL) AND (assignee IS NULL OR typeof(assignee) = 'text') AND (comment IS NULL OR typeof(comment) = 'text'))
);

CREATE INDEX ix_incident_project_incident_id ON incident (project, incident_id);

CREATE INDEX ix_incident_project_state_incident_id ON incident (project, state, incident_id);

CREATE INDEX ix_incident_state_incident_id ON incident (state, incident_id);

CREATE INDEX ix_incident_subject_incident_id ON incident (subject, incident_id);
