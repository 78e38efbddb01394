CREATE TABLE IF NOT EXISTS audit_finding (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	subject VARCHAR(200) NOT NULL,
	kind VARCHAR(40) NOT NULL,
	status VARCHAR(20) NOT NULL,
	run_id BIGINT,
	task_id BIGINT,
	workflow_id VARCHAR(1000),
	detail TEXT NOT NULL,
	evidence JSON NOT NULL,
	first_seen DATETIME NOT NULL,
	last_seen DATETIME NOT NULL,
	repair TEXT,
	repaired_at DATETIME,
	tries INTEGER NOT NULL,
	CONSTRAINT uq_audit_finding_subject UNIQUE (subject),
	CONSTRAINT ck_audit_finding_numbers CHECK (tries >= 0),
	CONSTRAINT ck_audit_finding_times CHECK (first_seen >= '1970-01-01' AND first_seen < '2101-01-01' AND last_seen >= '1970-01-01' AND last_seen < '2101-01-01' AND (repaired_at IS NULL OR repaired_at >= '1970-01-01' AND repaired_at < '2101-01-01')),
	CONSTRAINT ck_audit_finding_json CHECK (json_type(evidence) = 'object'),
	CONSTRAINT ck_audit_finding_types CHECK (typeof(id) = 'integer' AND typeof(subject) = 'text' AND typeof(kind) = 'text' AND typeof(status) = 'text' AND (run_id IS NULL OR typeof(run_id) = 'integer') AND (task_id IS NULL OR typeof(task_id) = 'integer') AND (workflow_id IS NULL OR typeof(workflow_id) = 'text') AND typeof(detail) = 'text' AND first_seen LIKE '____-__-__ __:__:__%' AND datetime(first_seen) IS NOT NULL AND last_seen LIKE '____-__-__ __:__:__%' AND datetime(last_seen) IS NOT NULL AND (repair IS NULL OR typeof(repair) = 'text') AND (repaired_at IS NULL OR repaired_at LIKE '____-__-__ __:__:__%' AND datetime(repaired_at) IS NOT NULL) AND typeof(tries) = 'integer')
);

CREATE INDEX ix_audit_finding_run_id ON audit_finding (run_id);

CREATE INDEX ix_audit_finding_status_last_seen ON audit_finding (status, last_seen);

CREATE TABLE IF NOT EXISTS audit_report (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	audit_id VARCHAR(200) NOT NULL,
	started_at DATETIME NOT NULL,
	ended_at DATETIME NOT NULL,
	report JSON NOT NULL,
	CONSTRAINT uq_audit_report_audit_id UNIQUE (audit_id),
	CONSTRAINT ck_audit_report_times CHECK (started_at >= '1970-01-01' AND started_at < '2101-01-01' AND ended_at >= '1970-01-01' AND ended_at < '2101-01-01'),
	CONSTRAINT ck_audit_report_json CHECK (json_type(report) = 'object'),
	CONSTRAINT ck_audit_report_types CHECK (typeof(id) = 'integer' AND typeof(audit_id) = 'text' AND started_at LIKE '____-__-__ __:__:__%' AND datetime(started_at) IS NOT NULL AND ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL)
);

CREATE TABLE IF NOT EXISTS crawler_memory (
	project VARCHAR(63) NOT NULL,
	crawler VARCHAR(63) NOT NULL,
	memory VARCHAR(20) NOT NULL,
	run_id BIGINT NOT NULL,
	PRIMARY KEY (project, crawler),
	CONSTRAINT ck_crawler_memory_types CHECK (typeof(project) = 'text' AND typeof(crawler) = 'text' AND typeof(memory) = 'text' AND typeof(run_id) = 'integer')
);

CREATE TABLE IF NOT EXISTS graph (
	graph_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	graph_uid VARCHAR(32) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	graph_key VARCHAR(200) NOT NULL,
	name VARCHAR(200),
	fingerprint VARCHAR(64) NOT NULL,
	pages INTEGER NOT NULL,
	options JSON NOT NULL,
	context JSON,
	state VARCHAR(20) NOT NULL,
	counts JSON,
	cause TEXT,
	attempt INTEGER NOT NULL,
	owner_workflow_id VARCHAR(1000),
	owner_run_id VARCHAR(64),
	former_owners JSON NOT NULL,
	next_batch BIGINT NOT NULL,
	commands JSON NOT NULL,
	stop_requested_at DATETIME,
	stop_force BOOLEAN NOT NULL,
	stop_requested_by VARCHAR(255),
	stop_reason TEXT,
	stop_limit VARCHAR(200),
	stop_escalated BOOLEAN NOT NULL,
	tags JSON NOT NULL,
	waiting_for TEXT,
	requested_by VARCHAR(255),
	parent VARCHAR(255),
	pruned_through BIGINT,
	pruned_at DATETIME,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	CONSTRAINT uq_graph_graph_key UNIQUE (graph_key),
	CONSTRAINT ck_graph_words CHECK (state IN ('draft', 'executing', 'completed', 'cancelled', 'discarded')),
	CONSTRAINT ck_graph_numbers CHECK (pages >= 0 AND attempt >= 1),
	CONSTRAINT ck_graph_times CHECK ((stop_requested_at IS NULL OR stop_requested_at >= '1970-01-01' AND stop_requested_at < '2101-01-01') AND (pruned_at IS NULL OR pruned_at >= '1970-01-01' AND pruned_at < '2101-01-01') AND created_at >= '1970-01-01' AND created_at < '2101-01-01' AND updated_at >= '1970-01-01' AND updated_at < '2101-01-01' AND (started_at IS NULL OR started_at >= '1970-01-01' AND started_at < '2101-01-01') AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01')),
	CONSTRAINT ck_graph_end CHECK ((state NOT IN ('cancelled', 'completed', 'discarded')) OR ended_at IS NOT NULL),
	CONSTRAINT ck_graph_json CHECK (json_type(options) = 'object' AND (context IS NULL OR json_type(context) = 'object') AND (counts IS NULL OR json_type(counts) = 'object') AND json_type(former_owners) = 'array' AND json_type(commands) = 'array' AND json_type(tags) = 'array'),
	CONSTRAINT ck_graph_types CHECK (typeof(graph_id) = 'integer' AND typeof(graph_uid) = 'text' AND typeof(project) = 'text' AND typeof(graph_key) = 'text' AND (name IS NULL OR typeof(name) = 'text') AND typeof(fingerprint) = 'text' AND typeof(pages) = 'integer' AND typeof(state) = 'text' AND (cause IS NULL OR typeof(cause) = 'text') AND typeof(attempt) = 'integer' AND (owner_workflow_id IS NULL OR typeof(owner_workflow_id) = 'text') AND (owner_run_id IS NULL OR typeof(owner_run_id) = 'text') AND typeof(next_batch) = 'integer' AND (stop_requested_at IS NULL OR stop_requested_at LIKE '____-__-__ __:__:__%' AND datetime(stop_requested_at) IS NOT NULL) AND typeof(stop_force) = 'integer' AND (stop_requested_by IS NULL OR typeof(stop_requested_by) = 'text') AND (stop_reason IS NULL OR typeof(stop_reason) = 'text') AND (stop_limit IS NULL OR typeof(stop_limit) = 'text') AND typeof(stop_escalated) = 'integer' AND (waiting_for IS NULL OR typeof(waiting_for) = 'text') AND (requested_by IS NULL OR typeof(requested_by) = 'text') AND (parent IS NULL OR typeof(parent) = 'text') AND (pruned_through IS NULL OR typeof(pruned_through) = 'integer') AND (pruned_at IS NULL OR pruned_at LIKE '____-__-__ __:__:__%' AND datetime(pruned_at) IS NOT NULL) AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND updated_at LIKE '____-__-__ __:__:__%' AND datetime(updated_at) IS NOT NULL AND (started_at IS NULL OR started_at LIKE '____-__-__ __:__:__%' AND datetime(started_at) IS NOT NULL) AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL))
);

CREATE INDEX ix_graph_name_graph_id ON graph (name, graph_id);

CREATE INDEX ix_graph_project_graph_id ON graph (project, graph_id);

CREATE INDEX ix_graph_project_state_graph_id ON graph (project, state, graph_id);

CREATE INDEX ix_graph_state_graph_id ON graph (state, graph_id);

CREATE TABLE IF NOT EXISTS manager (
	manager_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	manager_uid VARCHAR(32) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	name VARCHAR(63) NOT NULL,
	flow_id VARCHAR(120) NOT NULL,
	"plan" VARCHAR(200) NOT NULL,
	options JSON NOT NULL,
	request_hash VARCHAR(32) NOT NULL,
	status VARCHAR(20) NOT NULL,
	outcome VARCHAR(200),
	cause TEXT,
	attempt INTEGER NOT NULL,
	owner_workflow_id VARCHAR(1000),
	owner_run_id VARCHAR(64),
	former_owners JSON NOT NULL,
	generation INTEGER NOT NULL,
	fingerprint VARCHAR(100),
	position BIGINT NOT NULL,
	exhausted BOOLEAN NOT NULL,
	source_error TEXT,
	last_pick_at DATETIME,
	is_over BOOLEAN NOT NULL,
	sealed BOOLEAN NOT NULL,
	next_seq BIGINT NOT NULL,
	cap INTEGER,
	paused BOOLEAN NOT NULL,
	leave_runs BOOLEAN NOT NULL,
	stop_requested_at DATETIME,
	stop_force BOOLEAN NOT NULL,
	stop_requested_by VARCHAR(255),
	stop_reason TEXT,
	stop_limit VARCHAR(200),
	stop_escalated BOOLEAN NOT NULL,
	tries INTEGER NOT NULL,
	hook_errors INTEGER NOT NULL,
	state JSON NOT NULL,
	stats JSON NOT NULL,
	tags JSON NOT NULL,
	flow_tags JSON NOT NULL,
	close_reason VARCHAR(200),
	waiting_for TEXT,
	error TEXT,
	requested_by VARCHAR(255),
	parent VARCHAR(255),
	jobs_buffered BIGINT NOT NULL,
	jobs_delayed BIGINT NOT NULL,
	jobs_queued BIGINT NOT NULL,
	jobs_starting BIGINT NOT NULL,
	jobs_started BIGINT NOT NULL,
	jobs_ended BIGINT NOT NULL,
	jobs_skipped BIGINT NOT NULL,
	yields BIGINT NOT NULL,
	duplicates BIGINT NOT NULL,
	scheduled BIGINT NOT NULL,
	retried BIGINT NOT NULL,
	good BIGINT NOT NULL,
	bad BIGINT NOT NULL,
	pruned_through BIGINT,
	jobs_pruned_at DATETIME,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	CONSTRAINT uq_manager_flow_id_name UNIQUE (flow_id, name),
	CONSTRAINT ck_manager_words CHECK (status IN ('INITIALIZING', 'PROCESSING', 'STOPPING', 'COMPLETED', 'FAILED')),
	CONSTRAINT ck_manager_numbers CHECK (attempt >= 1 AND generation >= 0 AND position >= 0 AND next_seq >= 1 AND tries >= 0),
	CONSTRAINT ck_manager_times CHECK ((last_pick_at IS NULL OR last_pick_at >= '1970-01-01' AND last_pick_at < '2101-01-01') AND (stop_requested_at IS NULL OR stop_requested_at >= '1970-01-01' AND stop_requested_at < '2101-01-01') AND (jobs_pruned_at IS NULL OR jobs_pruned_at >= '1970-01-01' AND jobs_pruned_at < '2101-01-01') AND created_at >= '1970-01-01' AND created_at < '2101-01-01' AND updated_at >= '1970-01-01' AND updated_at < '2101-01-01' AND (started_at IS NULL OR started_at >= '1970-01-01' AND started_at < '2101-01-01') AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01')),
	CONSTRAINT ck_manager_end CHECK (((status NOT IN ('COMPLETED', 'FAILED')) OR ended_at IS NOT NULL) AND (status != 'STOPPING' OR stop_requested_at IS NOT NULL)),
	CONSTRAINT ck_manager_json CHECK (json_type(options) = 'object' AND json_type(former_owners) = 'array' AND json_type(state) = 'object' AND json_type(stats) = 'object' AND json_type(tags) = 'array' AND json_type(flow_tags) = 'array'),
	CONSTRAINT ck_manager_types CHECK (typeof(manager_id) = 'integer' AND typeof(manager_uid) = 'text' AND typeof(project) = 'text' AND typeof(name) = 'text' AND typeof(flow_id) = 'text' AND typeof("plan") = 'text' AND typeof(request_hash) = 'text' AND typeof(status) = 'text' AND (outcome IS NULL OR typeof(outcome) = 'text') AND (cause IS NULL OR typeof(cause) = 'text') AND typeof(attempt) = 'integer' AND (owner_workflow_id IS NULL OR typeof(owner_workflow_id) = 'text') AND (owner_run_id IS NULL OR typeof(owner_run_id) = 'text') AND typeof(generation) = 'integer' AND (fingerprint IS NULL OR typeof(fingerprint) = 'text') AND typeof(position) = 'integer' AND typeof(exhausted) = 'integer' AND (source_error IS NULL OR typeof(source_error) = 'text') AND (last_pick_at IS NULL OR last_pick_at LIKE '____-__-__ __:__:__%' AND datetime(last_pick_at) IS NOT NULL) AND typeof(is_over) = 'integer' AND typeof(sealed) = 'integer' AND typeof(next_seq) = 'integer' AND (cap IS NULL OR typeof(cap) = 'integer') AND typeof(paused) = 'integer' AND typeof(leave_runs) = 'integer' AND (stop_requested_at IS NULL OR stop_requested_at LIKE '____-__-__ __:__:__%' AND datetime(stop_requested_at) IS NOT NULL) AND typeof(stop_force) = 'integer' AND (stop_requested_by IS NULL OR typeof(stop_requested_by) = 'text') AND (stop_reason IS NULL OR typeof(stop_reason) = 'text') AND (stop_limit IS NULL OR typeof(stop_limit) = 'text') AND typeof(stop_escalated) = 'integer' AND typeof(tries) = 'integer' AND typeof(hook_errors) = 'integer' AND (close_reason IS NULL OR typeof(close_reason) = 'text') AND (waiting_for IS NULL OR typeof(waiting_for) = 'text') AND (error IS NULL OR typeof(error) = 'text') AND (requested_by IS NULL OR typeof(requested_by) = 'text') AND (parent IS NULL OR typeof(parent) = 'text') AND typeof(jobs_buffered) = 'integer' AND typeof(jobs_delayed) = 'integer' AND typeof(jobs_queued) = 'integer' AND typeof(jobs_starting) = 'integer' AND typeof(jobs_started) = 'integer' AND typeof(jobs_ended) = 'integer' AND typeof(jobs_skipped) = 'integer' AND typeof(yields) = 'integer' AND typeof(duplicates) = 'integer' AND typeof(scheduled) = 'integer' AND typeof(retried) = 'integer' AND typeof(good) = 'integer' AND typeof(bad) = 'integer' AND (pruned_through IS NULL OR typeof(pruned_through) = 'integer') AND (jobs_pruned_at IS NULL OR jobs_pruned_at LIKE '____-__-__ __:__:__%' AND datetime(jobs_pruned_at) IS NOT NULL) AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND updated_at LIKE '____-__-__ __:__:__%' AND datetime(updated_at) IS NOT NULL AND (started_at IS NULL OR started_at LIKE '____-__-__ __:__:__%' AND datetime(started_at) IS NOT NULL) AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL))
);

CREATE INDEX ix_manager_name_manager_id ON manager (name, manager_id);

CREATE INDEX ix_manager_project_manager_id ON manager (project, manager_id);

CREATE INDEX ix_manager_project_status_manager_id ON manager (project, status, manager_id);

CREATE INDEX ix_manager_status_manager_id ON manager (status, manager_id);

CREATE TABLE IF NOT EXISTS outbox_counter (
	id INTEGER NOT NULL,
	seq BIGINT NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS "plan" (
	"plan" VARCHAR(200) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	name VARCHAR(63),
	description TEXT NOT NULL,
	fingerprint VARCHAR(100) NOT NULL,
	options JSON NOT NULL,
	error TEXT,
	queue VARCHAR(50),
	worker VARCHAR(200) NOT NULL,
	since DATETIME NOT NULL,
	seen_at DATETIME,
	PRIMARY KEY ("plan", worker),
	CONSTRAINT ck_plan_times CHECK (since >= '1970-01-01' AND since < '2101-01-01' AND (seen_at IS NULL OR seen_at >= '1970-01-01' AND seen_at < '2101-01-01')),
	CONSTRAINT ck_plan_json CHECK (json_type(options) = 'array'),
	CONSTRAINT ck_plan_types CHECK (typeof("plan") = 'text' AND typeof(kind) = 'text' AND (name IS NULL OR typeof(name) = 'text') AND typeof(description) = 'text' AND typeof(fingerprint) = 'text' AND (error IS NULL OR typeof(error) = 'text') AND (queue IS NULL OR typeof(queue) = 'text') AND typeof(worker) = 'text' AND since LIKE '____-__-__ __:__:__%' AND datetime(since) IS NOT NULL AND (seen_at IS NULL OR seen_at LIKE '____-__-__ __:__:__%' AND datetime(seen_at) IS NOT NULL))
);

CREATE TABLE IF NOT EXISTS pool_gate (
	id INTEGER NOT NULL,
	state JSON NOT NULL,
	PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS run_history (
	run_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_uid VARCHAR(32) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	request_id VARCHAR(120) NOT NULL,
	request_hash VARCHAR(32) NOT NULL,
	work_hash VARCHAR(32),
	schedule VARCHAR(80),
	crawler VARCHAR(63) NOT NULL,
	pool VARCHAR(63) NOT NULL,
	"trigger" VARCHAR(20) NOT NULL,
	status VARCHAR(20) NOT NULL,
	stage VARCHAR(20) NOT NULL,
	outcome VARCHAR(200),
	cause TEXT,
	attempt INTEGER NOT NULL,
	owner_workflow_id VARCHAR(1000),
	owner_run_id VARCHAR(64),
	claim_resumed BOOLEAN NOT NULL,
	claim_rerun BOOLEAN NOT NULL,
	claim_repair BOOLEAN NOT NULL,
	attempt_at DATETIME,
	requeued_attempt INTEGER NOT NULL,
	request JSON NOT NULL,
	requested_by VARCHAR(255),
	caller VARCHAR(128),
	multi BOOLEAN NOT NULL,
	flow_id VARCHAR(255),
	parent VARCHAR(255),
	stop_requested_at DATETIME,
	stop_force BOOLEAN NOT NULL,
	stop_requested_by VARCHAR(255),
	stop_reason TEXT,
	stop_limit VARCHAR(200),
	stop_escalated BOOLEAN NOT NULL,
	stop_acted_at DATETIME,
	waiting_for TEXT,
	waiting_since DATETIME,
	look_error TEXT,
	look_error_since DATETIME,
	verified_at DATETIME,
	look_ordered_at DATETIME,
	next_look_at DATETIME,
	last_progress_at DATETIME,
	quiet_ms BIGINT,
	pages BIGINT,
	items BIGINT,
	errors BIGINT,
	bytes BIGINT,
	fields JSON,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	started_at DATETIME,
	ended_at DATETIME,
	deleted_at DATETIME,
	deletion_ended_at DATETIME,
	deletion JSON,
	CONSTRAINT uq_run_history_request_id UNIQUE (request_id),
	CONSTRAINT ck_run_history_words CHECK ("trigger" IN ('scheduled', 'manual', 'api') AND status IN ('INITIALIZING', 'PROCESSING', 'STOPPING', 'COMPLETED', 'FAILED') AND stage IN ('initiation', 'deployment', 'reconciliation', 'completion')),
	CONSTRAINT ck_run_history_numbers CHECK (attempt >= 1 AND (quiet_ms IS NULL OR quiet_ms >= 0) AND (pages IS NULL OR pages >= 0) AND (items IS NULL OR items >= 0) AND (errors IS NULL OR errors >= 0) AND (bytes IS NULL OR bytes >= 0)),
	CONSTRAINT ck_run_history_times CHECK ((attempt_at IS NULL OR attempt_at >= '1970-01-01' AND attempt_at < '2101-01-01') AND (stop_requested_at IS NULL OR stop_requested_at >= '1970-01-01' AND stop_requested_at < '2101-01-01') AND (stop_acted_at IS NULL OR stop_acted_at >= '1970-01-01' AND stop_acted_at < '2101-01-01') AND (waiting_since IS NULL OR waiting_since >= '1970-01-01' AND waiting_since < '2101-01-01') AND (look_error_since IS NULL OR look_error_since >= '1970-01-01' AND look_error_since < '2101-01-01') AND (verified_at IS NULL OR verified_at >= '1970-01-01' AND verified_at < '2101-01-01') AND (look_ordered_at IS NULL OR look_ordered_at >= '1970-01-01' AND look_ordered_at < '2101-01-01') AND (next_look_at IS NULL OR next_look_at >= '1970-01-01' AND next_look_at < '2101-01-01') AND (last_progress_at IS NULL OR last_progress_at >= '1970-01-01' AND last_progress_at < '2101-01-01') AND created_at >= '1970-01-01' AND created_at < '2101-01-01' AND updated_at >= '1970-01-01' AND updated_at < '2101-01-01' AND (started_at IS NULL OR started_at >= '1970-01-01' AND started_at < '2101-01-01') AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01') AND (deleted_at IS NULL OR deleted_at >= '1970-01-01' AND deleted_at < '2101-01-01') AND (deletion_ended_at IS NULL OR deletion_ended_at >= '1970-01-01' AND deletion_ended_at < '2101-01-01')),
	CONSTRAINT ck_run_history_end CHECK (((status NOT IN ('COMPLETED', 'FAILED')) OR ended_at IS NOT NULL) AND (status != 'STOPPING' OR stop_requested_at IS NOT NULL)),
	CONSTRAINT ck_run_history_json CHECK (json_type(request) = 'object' AND (fields IS NULL OR json_type(fields) = 'object') AND (deletion IS NULL OR json_type(deletion) = 'object')),
	CONSTRAINT ck_run_history_types CHECK (typeof(run_id) = 'integer' AND typeof(run_uid) = 'text' AND typeof(project) = 'text' AND typeof(request_id) = 'text' AND typeof(request_hash) = 'text' AND (work_hash IS NULL OR typeof(work_hash) = 'text') AND (schedule IS NULL OR typeof(schedule) = 'text') AND typeof(crawler) = 'text' AND typeof(pool) = 'text' AND typeof("trigger") = 'text' AND typeof(status) = 'text' AND typeof(stage) = 'text' AND (outcome IS NULL OR typeof(outcome) = 'text') AND (cause IS NULL OR typeof(cause) = 'text') AND typeof(attempt) = 'integer' AND (owner_workflow_id IS NULL OR typeof(owner_workflow_id) = 'text') AND (owner_run_id IS NULL OR typeof(owner_run_id) = 'text') AND typeof(claim_resumed) = 'integer' AND typeof(claim_rerun) = 'integer' AND typeof(claim_repair) = 'integer' AND (attempt_at IS NULL OR attempt_at LIKE '____-__-__ __:__:__%' AND datetime(attempt_at) IS NOT NULL) AND typeof(requeued_attempt) = 'integer' AND (requested_by IS NULL OR typeof(requested_by) = 'text') AND (caller IS NULL OR typeof(caller) = 'text') AND typeof(multi) = 'integer' AND (flow_id IS NULL OR typeof(flow_id) = 'text') AND (parent IS NULL OR typeof(parent) = 'text') AND (stop_requested_at IS NULL OR stop_requested_at LIKE '____-__-__ __:__:__%' AND datetime(stop_requested_at) IS NOT NULL) AND typeof(stop_force) = 'integer' AND (stop_requested_by IS NULL OR typeof(stop_requested_by) = 'text') AND (stop_reason IS NULL OR typeof(stop_reason) = 'text') AND (stop_limit IS NULL OR typeof(stop_limit) = 'text') AND typeof(stop_escalated) = 'integer' AND (stop_acted_at IS NULL OR stop_acted_at LIKE '____-__-__ __:__:__%' AND datetime(stop_acted_at) IS NOT NULL) AND (waiting_for IS NULL OR typeof(waiting_for) = 'text') AND (waiting_since IS NULL OR waiting_since LIKE '____-__-__ __:__:__%' AND datetime(waiting_since) IS NOT NULL) AND (look_error IS NULL OR typeof(look_error) = 'text') AND (look_error_since IS NULL OR look_error_since LIKE '____-__-__ __:__:__%' AND datetime(look_error_since) IS NOT NULL) AND (verified_at IS NULL OR verified_at LIKE '____-__-__ __:__:__%' AND datetime(verified_at) IS NOT NULL) AND (look_ordered_at IS NULL OR look_ordered_at LIKE '____-__-__ __:__:__%' AND datetime(look_ordered_at) IS NOT NULL) AND (next_look_at IS NULL OR next_look_at LIKE '____-__-__ __:__:__%' AND datetime(next_look_at) IS NOT NULL) AND (last_progress_at IS NULL OR last_progress_at LIKE '____-__-__ __:__:__%' AND datetime(last_progress_at) IS NOT NULL) AND (quiet_ms IS NULL OR typeof(quiet_ms) = 'integer') AND (pages IS NULL OR typeof(pages) = 'integer') AND (items IS NULL OR typeof(items) = 'integer') AND (errors IS NULL OR typeof(errors) = 'integer') AND (bytes IS NULL OR typeof(bytes) = 'integer') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND updated_at LIKE '____-__-__ __:__:__%' AND datetime(updated_at) IS NOT NULL AND (started_at IS NULL OR started_at LIKE '____-__-__ __:__:__%' AND datetime(started_at) IS NOT NULL) AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL) AND (deleted_at IS NULL OR deleted_at LIKE '____-__-__ __:__:__%' AND datetime(deleted_at) IS NOT NULL) AND (deletion_ended_at IS NULL OR deletion_ended_at LIKE '____-__-__ __:__:__%' AND datetime(deletion_ended_at) IS NOT NULL))
);

CREATE INDEX ix_run_history_caller_created_at ON run_history (caller, created_at);

CREATE INDEX ix_run_history_caller_status_run_id ON run_history (caller, status, run_id);

CREATE INDEX ix_run_history_crawler_run_id ON run_history (crawler, run_id);

CREATE INDEX ix_run_history_crawler_status_run_id ON run_history (crawler, status, run_id);

CREATE INDEX ix_run_history_created_at ON run_history (created_at);

CREATE INDEX ix_run_history_deletion_ended_at_deleted_at ON run_history (deletion_ended_at, deleted_at);

CREATE INDEX ix_run_history_ended_at_run_id ON run_history (ended_at, run_id);

CREATE INDEX ix_run_history_flow_id_run_id ON run_history (flow_id, run_id);

CREATE INDEX ix_run_history_flow_id_status_run_id ON run_history (flow_id, status, run_id);

CREATE INDEX ix_run_history_outcome_run_id ON run_history (outcome, run_id);

CREATE INDEX ix_run_history_overdue ON run_history (next_look_at, status, updated_at);

CREATE INDEX ix_run_history_parent_attempt_run_id ON run_history (parent, attempt, run_id);

CREATE INDEX ix_run_history_parent_ended_at_run_id ON run_history (parent, ended_at, run_id);

CREATE INDEX ix_run_history_parent_run_id ON run_history (parent, run_id);

CREATE INDEX ix_run_history_parent_status_run_id ON run_history (parent, status, run_id);

CREATE INDEX ix_run_history_pool_created_at ON run_history (pool, created_at);

CREATE INDEX ix_run_history_pool_run_id ON run_history (pool, run_id);

CREATE INDEX ix_run_history_pool_status_run_id ON run_history (pool, status, run_id);

CREATE INDEX ix_run_history_project_crawler_run_id ON run_history (project, crawler, run_id);

CREATE INDEX ix_run_history_project_crawler_status_run_id ON run_history (project, crawler, status, run_id);

CREATE INDEX ix_run_history_project_created_at ON run_history (project, created_at);

CREATE INDEX ix_run_history_project_outcome_run_id ON run_history (project, outcome, run_id);

CREATE INDEX ix_run_history_project_run_id ON run_history (project, run_id);

CREATE INDEX ix_run_history_project_stage_run_id ON run_history (project, stage, run_id);

CREATE INDEX ix_run_history_project_status_run_id ON run_history (project, status, run_id);

CREATE INDEX ix_run_history_project_trigger_run_id ON run_history (project, "trigger", run_id);

CREATE UNIQUE INDEX ix_run_history_run_uid ON run_history (run_uid);

CREATE INDEX ix_run_history_schedule_status_run_id ON run_history (schedule, status, run_id);

CREATE INDEX ix_run_history_stage_run_id ON run_history (stage, run_id);

CREATE INDEX ix_run_history_status_run_id ON run_history (status, run_id);

CREATE INDEX ix_run_history_trigger_run_id ON run_history ("trigger", run_id);

CREATE INDEX ix_run_history_unheard ON run_history (stop_acted_at, status, stop_requested_at);

CREATE INDEX ix_run_history_unowned ON run_history (owner_run_id, status, created_at);

CREATE INDEX ix_run_history_work_hash_status_run_id ON run_history (work_hash, status, run_id);

CREATE TABLE IF NOT EXISTS schedule (
	schedule_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name VARCHAR(80) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	revision INTEGER NOT NULL,
	definition JSON NOT NULL,
	told INTEGER,
	requested_by VARCHAR(255),
	paused_at DATETIME,
	pause_reason TEXT,
	failures_after BIGINT NOT NULL,
	checked_until DATETIME NOT NULL,
	trouble TEXT,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	ended_at DATETIME,
	deleted_at DATETIME,
	CONSTRAINT uq_schedule_name UNIQUE (name),
	CONSTRAINT ck_schedule_times CHECK ((paused_at IS NULL OR paused_at >= '1970-01-01' AND paused_at < '2101-01-01') AND checked_until >= '1970-01-01' AND checked_until < '2101-01-01' AND created_at >= '1970-01-01' AND created_at < '2101-01-01' AND updated_at >= '1970-01-01' AND updated_at < '2101-01-01' AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01') AND (deleted_at IS NULL OR deleted_at >= '1970-01-01' AND deleted_at < '2101-01-01')),
	CONSTRAINT ck_schedule_json CHECK (json_type(definition) = 'object'),
	CONSTRAINT ck_schedule_types CHECK (typeof(schedule_id) = 'integer' AND typeof(name) = 'text' AND typeof(project) = 'text' AND typeof(revision) = 'integer' AND (told IS NULL OR typeof(told) = 'integer') AND (requested_by IS NULL OR typeof(requested_by) = 'text') AND (paused_at IS NULL OR paused_at LIKE '____-__-__ __:__:__%' AND datetime(paused_at) IS NOT NULL) AND (pause_reason IS NULL OR typeof(pause_reason) = 'text') AND typeof(failures_after) = 'integer' AND checked_until LIKE '____-__-__ __:__:__%' AND datetime(checked_until) IS NOT NULL AND (trouble IS NULL OR typeof(trouble) = 'text') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND updated_at LIKE '____-__-__ __:__:__%' AND datetime(updated_at) IS NOT NULL AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL) AND (deleted_at IS NULL OR deleted_at LIKE '____-__-__ __:__:__%' AND datetime(deleted_at) IS NOT NULL))
);

CREATE INDEX ix_schedule_project_schedule_id ON schedule (project, schedule_id);

CREATE TABLE IF NOT EXISTS schema_compatibility (
	id INTEGER NOT NULL,
	works_from VARCHAR(32) NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT ck_schema_compatibility_types CHECK (typeof(id) = 'integer' AND typeof(works_from) = 'text')
);

CREATE TABLE IF NOT EXISTS task_change (
	run_id BIGINT NOT NULL,
	task_id BIGINT NOT NULL,
	believed VARCHAR(20),
	cluster_time DATETIME,
	lag_ms BIGINT,
	correction VARCHAR(30),
	evidence JSON,
	superseded_by BIGINT,
	status VARCHAR(20),
	status_since DATETIME,
	outcome VARCHAR(200),
	cause TEXT,
	error VARCHAR(300),
	cluster VARCHAR(100),
	cluster_name VARCHAR(255),
	cluster_uid VARCHAR(100),
	node VARCHAR(255),
	reason TEXT,
	exit_code INTEGER,
	exit_signal INTEGER,
	pages BIGINT,
	items BIGINT,
	errors BIGINT,
	bytes BIGINT,
	peak_memory BIGINT,
	fields JSON,
	resumed BOOLEAN,
	resume_note VARCHAR(200),
	ever_seen BOOLEAN,
	absent_since DATETIME,
	missed_at DATETIME,
	last_progress_at DATETIME,
	deployed_at DATETIME,
	started_at DATETIME,
	ended_at DATETIME,
	retry_note VARCHAR(200),
	PRIMARY KEY (run_id, task_id)
);

CREATE TABLE IF NOT EXISTS task_finding (
	run_id BIGINT NOT NULL,
	task_id BIGINT NOT NULL,
	believed VARCHAR(20) NOT NULL,
	terminal BOOLEAN NOT NULL,
	cluster_time DATETIME,
	vouched_at DATETIME,
	correction VARCHAR(30),
	evidence JSON NOT NULL,
	status VARCHAR(20),
	outcome VARCHAR(200),
	cause TEXT,
	reason TEXT,
	started_at DATETIME,
	deployed_at DATETIME,
	cluster_name VARCHAR(255),
	cluster_uid VARCHAR(100),
	node VARCHAR(255),
	exit_code INTEGER,
	exit_signal INTEGER,
	PRIMARY KEY (run_id, task_id)
);

CREATE TABLE IF NOT EXISTS task_observation (
	task_id INTEGER NOT NULL,
	run_id BIGINT NOT NULL,
	attempt INTEGER NOT NULL,
	task_index INTEGER NOT NULL,
	finding JSON,
	details JSON,
	PRIMARY KEY (task_id),
	CONSTRAINT ck_task_observation_numbers CHECK (attempt >= 1 AND task_index >= 0),
	CONSTRAINT ck_task_observation_json CHECK ((finding IS NULL OR json_type(finding) = 'object') AND (details IS NULL OR json_type(details) = 'object')),
	CONSTRAINT ck_task_observation_types CHECK (typeof(task_id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(attempt) = 'integer' AND typeof(task_index) = 'integer')
);

CREATE INDEX ix_task_observation_run_id_task_index ON task_observation (run_id, task_index);

CREATE TABLE IF NOT EXISTS webhook (
	webhook_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	webhook_uid VARCHAR(32) NOT NULL,
	name VARCHAR(80) NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	revision INTEGER NOT NULL,
	definition JSON NOT NULL,
	requested_by VARCHAR(255),
	through_seq BIGINT NOT NULL,
	follower VARCHAR(64),
	failing_since DATETIME,
	error TEXT,
	delivered_at DATETIME,
	paused_at DATETIME,
	pause_reason TEXT,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	deleted_at DATETIME,
	CONSTRAINT uq_webhook_name UNIQUE (name),
	CONSTRAINT ck_webhook_times CHECK ((failing_since IS NULL OR failing_since >= '1970-01-01' AND failing_since < '2101-01-01') AND (delivered_at IS NULL OR delivered_at >= '1970-01-01' AND delivered_at < '2101-01-01') AND (paused_at IS NULL OR paused_at >= '1970-01-01' AND paused_at < '2101-01-01') AND created_at >= '1970-01-01' AND created_at < '2101-01-01' AND updated_at >= '1970-01-01' AND updated_at < '2101-01-01' AND (deleted_at IS NULL OR deleted_at >= '1970-01-01' AND deleted_at < '2101-01-01')),
	CONSTRAINT ck_webhook_json CHECK (json_type(definition) = 'object'),
	CONSTRAINT ck_webhook_types CHECK (typeof(webhook_id) = 'integer' AND typeof(webhook_uid) = 'text' AND typeof(name) = 'text' AND typeof(project) = 'text' AND typeof(revision) = 'integer' AND (requested_by IS NULL OR typeof(requested_by) = 'text') AND typeof(through_seq) = 'integer' AND (follower IS NULL OR typeof(follower) = 'text') AND (failing_since IS NULL OR failing_since LIKE '____-__-__ __:__:__%' AND datetime(failing_since) IS NOT NULL) AND (error IS NULL OR typeof(error) = 'text') AND (delivered_at IS NULL OR delivered_at LIKE '____-__-__ __:__:__%' AND datetime(delivered_at) IS NOT NULL) AND (paused_at IS NULL OR paused_at LIKE '____-__-__ __:__:__%' AND datetime(paused_at) IS NOT NULL) AND (pause_reason IS NULL OR typeof(pause_reason) = 'text') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND updated_at LIKE '____-__-__ __:__:__%' AND datetime(updated_at) IS NOT NULL AND (deleted_at IS NULL OR deleted_at LIKE '____-__-__ __:__:__%' AND datetime(deleted_at) IS NOT NULL))
);

CREATE INDEX ix_webhook_project_webhook_id ON webhook (project, webhook_id);

CREATE TABLE IF NOT EXISTS cancellation_log (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	request_id VARCHAR(120) NOT NULL,
	requested_by VARCHAR(255),
	reason TEXT,
	force BOOLEAN NOT NULL,
	requested_at DATETIME NOT NULL,
	acted_at DATETIME,
	CONSTRAINT uq_cancellation_log_run_id_attempt_request_id UNIQUE (run_id, attempt, request_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_cancellation_log_numbers CHECK (attempt >= 1),
	CONSTRAINT ck_cancellation_log_times CHECK (requested_at >= '1970-01-01' AND requested_at < '2101-01-01' AND (acted_at IS NULL OR acted_at >= '1970-01-01' AND acted_at < '2101-01-01')),
	CONSTRAINT ck_cancellation_log_types CHECK (typeof(id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(attempt) = 'integer' AND typeof(request_id) = 'text' AND (requested_by IS NULL OR typeof(requested_by) = 'text') AND (reason IS NULL OR typeof(reason) = 'text') AND typeof(force) = 'integer' AND requested_at LIKE '____-__-__ __:__:__%' AND datetime(requested_at) IS NOT NULL AND (acted_at IS NULL OR acted_at LIKE '____-__-__ __:__:__%' AND datetime(acted_at) IS NOT NULL))
);

CREATE TABLE IF NOT EXISTS correction (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	task_id BIGINT,
	attempt INTEGER NOT NULL,
	kind VARCHAR(30) NOT NULL,
	believed VARCHAR(20) NOT NULL,
	believed_since DATETIME,
	truth VARCHAR(20) NOT NULL,
	truth_since DATETIME,
	found_by VARCHAR(20) NOT NULL,
	lag_ms BIGINT,
	evidence JSON NOT NULL,
	created_at DATETIME NOT NULL,
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_correction_numbers CHECK (attempt >= 1),
	CONSTRAINT ck_correction_times CHECK ((believed_since IS NULL OR believed_since >= '1970-01-01' AND believed_since < '2101-01-01') AND (truth_since IS NULL OR truth_since >= '1970-01-01' AND truth_since < '2101-01-01') AND created_at >= '1970-01-01' AND created_at < '2101-01-01'),
	CONSTRAINT ck_correction_json CHECK (json_type(evidence) = 'object'),
	CONSTRAINT ck_correction_types CHECK (typeof(id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(project) = 'text' AND (task_id IS NULL OR typeof(task_id) = 'integer') AND typeof(attempt) = 'integer' AND typeof(kind) = 'text' AND typeof(believed) = 'text' AND (believed_since IS NULL OR believed_since LIKE '____-__-__ __:__:__%' AND datetime(believed_since) IS NOT NULL) AND typeof(truth) = 'text' AND (truth_since IS NULL OR truth_since LIKE '____-__-__ __:__:__%' AND datetime(truth_since) IS NOT NULL) AND typeof(found_by) = 'text' AND (lag_ms IS NULL OR typeof(lag_ms) = 'integer') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL)
);

CREATE INDEX ix_correction_kind_id ON correction (kind, id);

CREATE INDEX ix_correction_project_id ON correction (project, id);

CREATE INDEX ix_correction_project_kind_id ON correction (project, kind, id);

CREATE INDEX ix_correction_run_id_id ON correction (run_id, id);

CREATE INDEX ix_correction_summary ON correction (created_at, kind, lag_ms);

CREATE INDEX ix_correction_summary_of_project ON correction (project, created_at, kind, lag_ms);

CREATE TABLE IF NOT EXISTS export_record (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	status VARCHAR(20) NOT NULL,
	url VARCHAR(2000),
	bytes BIGINT,
	files INTEGER,
	sha256 VARCHAR(64),
	error TEXT,
	at DATETIME NOT NULL,
	CONSTRAINT uq_export_record_run_id_attempt UNIQUE (run_id, attempt),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_export_record_numbers CHECK (attempt >= 1 AND (bytes IS NULL OR bytes >= 0)),
	CONSTRAINT ck_export_record_times CHECK (at >= '1970-01-01' AND at < '2101-01-01'),
	CONSTRAINT ck_export_record_types CHECK (typeof(id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(attempt) = 'integer' AND typeof(status) = 'text' AND (url IS NULL OR typeof(url) = 'text') AND (bytes IS NULL OR typeof(bytes) = 'integer') AND (files IS NULL OR typeof(files) = 'integer') AND (sha256 IS NULL OR typeof(sha256) = 'text') AND (error IS NULL OR typeof(error) = 'text') AND at LIKE '____-__-__ __:__:__%' AND datetime(at) IS NOT NULL)
);

CREATE TABLE IF NOT EXISTS graph_change (
	graph_id INTEGER NOT NULL,
	number INTEGER NOT NULL,
	shape JSON,
	state VARCHAR(20),
	attempt INTEGER,
	tries INTEGER,
	not_before DATETIME,
	batch BIGINT,
	alternative INTEGER,
	run_id BIGINT,
	run_attempt INTEGER,
	ending BOOLEAN,
	outcome VARCHAR(200),
	reason TEXT,
	errors JSON,
	started_at DATETIME,
	ended_at DATETIME,
	result_bytes BIGINT,
	PRIMARY KEY (graph_id, number),
	FOREIGN KEY(graph_id) REFERENCES graph (graph_id)
);

CREATE TABLE IF NOT EXISTS graph_log (
	graph_id INTEGER NOT NULL,
	log_tail TEXT NOT NULL,
	PRIMARY KEY (graph_id),
	FOREIGN KEY(graph_id) REFERENCES graph (graph_id),
	CONSTRAINT ck_graph_log_types CHECK (typeof(graph_id) = 'integer' AND typeof(log_tail) = 'text')
);

CREATE TABLE IF NOT EXISTS graph_page (
	graph_id INTEGER NOT NULL,
	page INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (graph_id, page),
	FOREIGN KEY(graph_id) REFERENCES graph (graph_id),
	CONSTRAINT ck_graph_page_types CHECK (typeof(graph_id) = 'integer' AND typeof(page) = 'integer')
);

CREATE TABLE IF NOT EXISTS graph_result (
	graph_id INTEGER NOT NULL,
	number INTEGER NOT NULL,
	part INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (graph_id, number, part),
	FOREIGN KEY(graph_id) REFERENCES graph (graph_id),
	CONSTRAINT ck_graph_result_types CHECK (typeof(graph_id) = 'integer' AND typeof(number) = 'integer' AND typeof(part) = 'integer')
);

CREATE TABLE IF NOT EXISTS graph_step (
	graph_id INTEGER NOT NULL,
	number INTEGER NOT NULL,
	path TEXT NOT NULL,
	path_hash VARCHAR(32) NOT NULL,
	kind VARCHAR(20) NOT NULL,
	parent INTEGER,
	shape JSON,
	job JSON NOT NULL,
	state VARCHAR(20) NOT NULL,
	attempt INTEGER NOT NULL,
	tries INTEGER NOT NULL,
	snoozed INTEGER NOT NULL,
	not_before DATETIME,
	batch BIGINT,
	alternative INTEGER,
	run_id BIGINT,
	run_attempt INTEGER NOT NULL,
	begun_attempt INTEGER NOT NULL,
	ending BOOLEAN NOT NULL,
	outcome VARCHAR(200),
	reason TEXT,
	errors JSON,
	result_bytes BIGINT,
	graft_attempt INTEGER,
	graft_digest VARCHAR(64),
	started_at DATETIME,
	ended_at DATETIME,
	PRIMARY KEY (graph_id, number),
	CONSTRAINT uq_graph_step_graph_id_path_hash UNIQUE (graph_id, path_hash),
	FOREIGN KEY(graph_id) REFERENCES graph (graph_id),
	CONSTRAINT ck_graph_step_words CHECK (kind IN ('function', 'crawl', 'manager', 'graph') AND state IN ('suspended', 'scheduled', 'available', 'executing', 'retryable', 'completed', 'cancelled', 'discarded')),
	CONSTRAINT ck_graph_step_numbers CHECK (attempt >= 0 AND tries >= 0),
	CONSTRAINT ck_graph_step_times CHECK ((not_before IS NULL OR not_before >= '1970-01-01' AND not_before < '2101-01-01') AND (started_at IS NULL OR started_at >= '1970-01-01' AND started_at < '2101-01-01') AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01')),
	CONSTRAINT ck_graph_step_json CHECK ((shape IS NULL OR json_type(shape) = 'object') AND json_type(job) = 'object' AND (errors IS NULL OR json_type(errors) = 'array')),
	CONSTRAINT ck_graph_step_types CHECK (typeof(graph_id) = 'integer' AND typeof(number) = 'integer' AND typeof(path) = 'text' AND typeof(path_hash) = 'text' AND typeof(kind) = 'text' AND (parent IS NULL OR typeof(parent) = 'integer') AND typeof(state) = 'text' AND typeof(attempt) = 'integer' AND typeof(tries) = 'integer' AND typeof(snoozed) = 'integer' AND (not_before IS NULL OR not_before LIKE '____-__-__ __:__:__%' AND datetime(not_before) IS NOT NULL) AND (batch IS NULL OR typeof(batch) = 'integer') AND (alternative IS NULL OR typeof(alternative) = 'integer') AND (run_id IS NULL OR typeof(run_id) = 'integer') AND typeof(run_attempt) = 'integer' AND typeof(begun_attempt) = 'integer' AND typeof(ending) = 'integer' AND (outcome IS NULL OR typeof(outcome) = 'text') AND (reason IS NULL OR typeof(reason) = 'text') AND (result_bytes IS NULL OR typeof(result_bytes) = 'integer') AND (graft_attempt IS NULL OR typeof(graft_attempt) = 'integer') AND (graft_digest IS NULL OR typeof(graft_digest) = 'text') AND (started_at IS NULL OR started_at LIKE '____-__-__ __:__:__%' AND datetime(started_at) IS NOT NULL) AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL))
);

CREATE INDEX ix_graph_step_graph_id_batch ON graph_step (graph_id, batch);

CREATE INDEX ix_graph_step_graph_id_parent ON graph_step (graph_id, parent);

CREATE INDEX ix_graph_step_states ON graph_step (graph_id, kind, state, ending);

CREATE TABLE IF NOT EXISTS history_property (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	name VARCHAR(100) NOT NULL,
	value VARCHAR(1000) NOT NULL,
	CONSTRAINT uq_history_property_run_id_attempt_name UNIQUE (run_id, attempt, name),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_history_property_numbers CHECK (attempt >= 1),
	CONSTRAINT ck_history_property_types CHECK (typeof(id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(attempt) = 'integer' AND typeof(name) = 'text' AND typeof(value) = 'text')
);

CREATE TABLE IF NOT EXISTS manager_addition (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	manager_id INTEGER NOT NULL,
	request_key VARCHAR(120) NOT NULL,
	jobs_hash VARCHAR(32) NOT NULL,
	jobs INTEGER NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT uq_manager_addition_manager_id_request_key UNIQUE (manager_id, request_key),
	FOREIGN KEY(manager_id) REFERENCES manager (manager_id),
	CONSTRAINT ck_manager_addition_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01'),
	CONSTRAINT ck_manager_addition_types CHECK (typeof(id) = 'integer' AND typeof(manager_id) = 'integer' AND typeof(request_key) = 'text' AND typeof(jobs_hash) = 'text' AND typeof(jobs) = 'integer' AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL)
);

CREATE TABLE IF NOT EXISTS manager_item (
	item_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	manager_id INTEGER NOT NULL,
	identity VARCHAR(64),
	position BIGINT,
	state VARCHAR(20) NOT NULL,
	seq BIGINT,
	retry INTEGER NOT NULL,
	retry_of VARCHAR(120),
	spider VARCHAR(255),
	cap_key VARCHAR(255),
	params JSON,
	not_before DATETIME,
	run_id BIGINT,
	handled_attempt INTEGER NOT NULL,
	hook_tries INTEGER NOT NULL,
	outcome VARCHAR(200),
	error TEXT,
	created_at DATETIME NOT NULL,
	updated_at DATETIME NOT NULL,
	CONSTRAINT uq_manager_item_manager_id_identity UNIQUE (manager_id, identity),
	CONSTRAINT uq_manager_item_manager_id_seq_retry UNIQUE (manager_id, seq, retry),
	FOREIGN KEY(manager_id) REFERENCES manager (manager_id),
	CONSTRAINT ck_manager_item_words CHECK (state IN ('buffered', 'delayed', 'queued', 'starting', 'started', 'ended', 'skipped')),
	CONSTRAINT ck_manager_item_numbers CHECK ((position IS NULL OR position >= 0) AND (seq IS NULL OR seq >= 1) AND retry >= 0),
	CONSTRAINT ck_manager_item_times CHECK ((not_before IS NULL OR not_before >= '1970-01-01' AND not_before < '2101-01-01') AND created_at >= '1970-01-01' AND created_at < '2101-01-01' AND updated_at >= '1970-01-01' AND updated_at < '2101-01-01'),
	CONSTRAINT ck_manager_item_json CHECK (params IS NULL OR json_type(params) = 'object'),
	CONSTRAINT ck_manager_item_types CHECK (typeof(item_id) = 'integer' AND typeof(manager_id) = 'integer' AND (identity IS NULL OR typeof(identity) = 'text') AND (position IS NULL OR typeof(position) = 'integer') AND typeof(state) = 'text' AND (seq IS NULL OR typeof(seq) = 'integer') AND typeof(retry) = 'integer' AND (retry_of IS NULL OR typeof(retry_of) = 'text') AND (spider IS NULL OR typeof(spider) = 'text') AND (cap_key IS NULL OR typeof(cap_key) = 'text') AND (not_before IS NULL OR not_before LIKE '____-__-__ __:__:__%' AND datetime(not_before) IS NOT NULL) AND (run_id IS NULL OR typeof(run_id) = 'integer') AND typeof(handled_attempt) = 'integer' AND typeof(hook_tries) = 'integer' AND (outcome IS NULL OR typeof(outcome) = 'text') AND (error IS NULL OR typeof(error) = 'text') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL AND updated_at LIKE '____-__-__ __:__:__%' AND datetime(updated_at) IS NOT NULL)
);

CREATE INDEX ix_manager_item_manager_id_state_item_id ON manager_item (manager_id, state, item_id);

CREATE INDEX ix_manager_item_run_id ON manager_item (run_id);

CREATE TABLE IF NOT EXISTS manager_log (
	manager_id INTEGER NOT NULL,
	log_tail TEXT NOT NULL,
	PRIMARY KEY (manager_id),
	FOREIGN KEY(manager_id) REFERENCES manager (manager_id),
	CONSTRAINT ck_manager_log_types CHECK (typeof(manager_id) = 'integer' AND typeof(log_tail) = 'text')
);

CREATE TABLE IF NOT EXISTS outbox_event (
	seq INTEGER NOT NULL,
	subject VARCHAR(220) NOT NULL,
	subject_uid VARCHAR(32) NOT NULL,
	run_id INTEGER,
	attempt INTEGER NOT NULL,
	type VARCHAR(50) NOT NULL,
	event_key VARCHAR(200),
	body JSON NOT NULL,
	created_at DATETIME NOT NULL,
	PRIMARY KEY (seq),
	CONSTRAINT uq_outbox_event_event_key UNIQUE (event_key),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_outbox_event_numbers CHECK (attempt >= 1),
	CONSTRAINT ck_outbox_event_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01'),
	CONSTRAINT ck_outbox_event_json CHECK (json_type(body) = 'object'),
	CONSTRAINT ck_outbox_event_types CHECK (typeof(seq) = 'integer' AND typeof(subject) = 'text' AND typeof(subject_uid) = 'text' AND (run_id IS NULL OR typeof(run_id) = 'integer') AND typeof(attempt) = 'integer' AND typeof(type) = 'text' AND (event_key IS NULL OR typeof(event_key) = 'text') AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL)
);

CREATE INDEX ix_outbox_event_run_id_seq ON outbox_event (run_id, seq);

CREATE INDEX ix_outbox_event_subject_seq ON outbox_event (subject, seq);

CREATE TABLE IF NOT EXISTS pool_ticket (
	run_id INTEGER NOT NULL,
	pool VARCHAR(63) NOT NULL,
	priority INTEGER NOT NULL,
	since DATETIME NOT NULL,
	waits_since DATETIME NOT NULL,
	wanted INTEGER NOT NULL,
	called_at DATETIME,
	PRIMARY KEY (run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_pool_ticket_times CHECK (since >= '1970-01-01' AND since < '2101-01-01' AND waits_since >= '1970-01-01' AND waits_since < '2101-01-01' AND (called_at IS NULL OR called_at >= '1970-01-01' AND called_at < '2101-01-01')),
	CONSTRAINT ck_pool_ticket_types CHECK (typeof(run_id) = 'integer' AND typeof(pool) = 'text' AND typeof(priority) = 'integer' AND since LIKE '____-__-__ __:__:__%' AND datetime(since) IS NOT NULL AND waits_since LIKE '____-__-__ __:__:__%' AND datetime(waits_since) IS NOT NULL AND typeof(wanted) = 'integer' AND (called_at IS NULL OR called_at LIKE '____-__-__ __:__:__%' AND datetime(called_at) IS NOT NULL))
);

CREATE INDEX ix_pool_ticket_called_at ON pool_ticket (called_at);

CREATE INDEX ix_pool_ticket_pool_priority_since_run_id ON pool_ticket (pool, priority, since, run_id);

CREATE TABLE IF NOT EXISTS run_tag (
	tag VARCHAR(200) NOT NULL,
	run_id INTEGER NOT NULL,
	project VARCHAR(63) DEFAULT 'default' NOT NULL,
	PRIMARY KEY (tag, run_id),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_run_tag_types CHECK (typeof(tag) = 'text' AND typeof(run_id) = 'integer' AND typeof(project) = 'text')
);

CREATE INDEX ix_run_tag_project_tag_run_id ON run_tag (project, tag, run_id);

CREATE INDEX ix_run_tag_run_id ON run_tag (run_id);

CREATE TABLE IF NOT EXISTS schedule_due (
	due_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	schedule_id INTEGER NOT NULL,
	revision INTEGER NOT NULL,
	due_at DATETIME NOT NULL,
	decision VARCHAR(20) NOT NULL,
	reason TEXT,
	asked_by VARCHAR(255),
	request_key VARCHAR(120),
	lateness_ms BIGINT NOT NULL,
	decided_at DATETIME NOT NULL,
	after_id BIGINT,
	target_kind VARCHAR(20) NOT NULL,
	target_id BIGINT,
	begun_at DATETIME,
	CONSTRAINT uq_schedule_due_schedule_id_due_at UNIQUE (schedule_id, due_at),
	CONSTRAINT uq_schedule_due_schedule_id_request_key UNIQUE (schedule_id, request_key),
	FOREIGN KEY(schedule_id) REFERENCES schedule (schedule_id),
	CONSTRAINT ck_schedule_due_words CHECK (decision IN ('started', 'queued', 'skipped_overlap', 'paused', 'missed', 'failed') AND target_kind IN ('run', 'manager', 'graph')),
	CONSTRAINT ck_schedule_due_times CHECK (due_at >= '1970-01-01' AND due_at < '2101-01-01' AND decided_at >= '1970-01-01' AND decided_at < '2101-01-01' AND (begun_at IS NULL OR begun_at >= '1970-01-01' AND begun_at < '2101-01-01')),
	CONSTRAINT ck_schedule_due_types CHECK (typeof(due_id) = 'integer' AND typeof(schedule_id) = 'integer' AND typeof(revision) = 'integer' AND due_at LIKE '____-__-__ __:__:__%' AND datetime(due_at) IS NOT NULL AND typeof(decision) = 'text' AND (reason IS NULL OR typeof(reason) = 'text') AND (asked_by IS NULL OR typeof(asked_by) = 'text') AND (request_key IS NULL OR typeof(request_key) = 'text') AND typeof(lateness_ms) = 'integer' AND decided_at LIKE '____-__-__ __:__:__%' AND datetime(decided_at) IS NOT NULL AND (after_id IS NULL OR typeof(after_id) = 'integer') AND typeof(target_kind) = 'text' AND (target_id IS NULL OR typeof(target_id) = 'integer') AND (begun_at IS NULL OR begun_at LIKE '____-__-__ __:__:__%' AND datetime(begun_at) IS NOT NULL))
);

CREATE INDEX ix_schedule_due_decision_target_id_due_id ON schedule_due (decision, target_id, due_id);

CREATE INDEX ix_schedule_due_schedule_id_decision_decided_at ON schedule_due (schedule_id, decision, decided_at);

CREATE TABLE IF NOT EXISTS status_transition (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	task_id BIGINT,
	attempt INTEGER NOT NULL,
	from_status VARCHAR(20),
	to_status VARCHAR(20) NOT NULL,
	cluster_time DATETIME,
	committed_at DATETIME NOT NULL,
	lag_ms BIGINT,
	source VARCHAR(20) NOT NULL,
	evidence JSON NOT NULL,
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_status_transition_numbers CHECK (attempt >= 1),
	CONSTRAINT ck_status_transition_times CHECK ((cluster_time IS NULL OR cluster_time >= '1970-01-01' AND cluster_time < '2101-01-01') AND committed_at >= '1970-01-01' AND committed_at < '2101-01-01'),
	CONSTRAINT ck_status_transition_json CHECK (json_type(evidence) = 'object'),
	CONSTRAINT ck_status_transition_types CHECK (typeof(seq) = 'integer' AND typeof(run_id) = 'integer' AND (task_id IS NULL OR typeof(task_id) = 'integer') AND typeof(attempt) = 'integer' AND (from_status IS NULL OR typeof(from_status) = 'text') AND typeof(to_status) = 'text' AND (cluster_time IS NULL OR cluster_time LIKE '____-__-__ __:__:__%' AND datetime(cluster_time) IS NOT NULL) AND committed_at LIKE '____-__-__ __:__:__%' AND datetime(committed_at) IS NOT NULL AND (lag_ms IS NULL OR typeof(lag_ms) = 'integer') AND typeof(source) = 'text')
);

CREATE INDEX ix_status_transition_run_id_seq ON status_transition (run_id, seq);

CREATE TABLE IF NOT EXISTS task_addition (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	request_key VARCHAR(120) NOT NULL,
	args_hash VARCHAR(32) NOT NULL,
	first_index INTEGER NOT NULL,
	tasks INTEGER NOT NULL,
	created_at DATETIME NOT NULL,
	CONSTRAINT uq_task_addition_run_id_request_key UNIQUE (run_id, request_key),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_task_addition_times CHECK (created_at >= '1970-01-01' AND created_at < '2101-01-01'),
	CONSTRAINT ck_task_addition_types CHECK (typeof(id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(request_key) = 'text' AND typeof(args_hash) = 'text' AND typeof(first_index) = 'integer' AND typeof(tasks) = 'integer' AND created_at LIKE '____-__-__ __:__:__%' AND datetime(created_at) IS NOT NULL)
);

CREATE TABLE IF NOT EXISTS task_history (
	task_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	run_id INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	run_attempt INTEGER NOT NULL,
	task_index INTEGER NOT NULL,
	superseded_by BIGINT,
	status VARCHAR(20) NOT NULL,
	status_since DATETIME NOT NULL,
	outcome VARCHAR(200),
	cause TEXT,
	error VARCHAR(300),
	args JSON NOT NULL,
	cluster VARCHAR(100),
	cluster_name VARCHAR(255),
	cluster_uid VARCHAR(100),
	cluster_place VARCHAR(200),
	killed_at DATETIME,
	node VARCHAR(255),
	reason TEXT,
	exit_code INTEGER,
	exit_signal INTEGER,
	pages BIGINT,
	items BIGINT,
	errors BIGINT,
	bytes BIGINT,
	peak_memory BIGINT,
	fields JSON,
	resumed BOOLEAN,
	resume_note VARCHAR(200),
	offered_until DATETIME,
	retry INTEGER DEFAULT '0' NOT NULL,
	not_before DATETIME,
	memory VARCHAR(20),
	avoid_node VARCHAR(255),
	retry_note VARCHAR(200),
	pool VARCHAR(63),
	priority INTEGER,
	ever_seen BOOLEAN NOT NULL,
	absent_since DATETIME,
	missed_at DATETIME,
	last_progress_at DATETIME,
	deployed_at DATETIME,
	started_at DATETIME,
	ended_at DATETIME,
	CONSTRAINT uq_task_history_run_id_task_index_attempt UNIQUE (run_id, task_index, attempt),
	FOREIGN KEY(run_id) REFERENCES run_history (run_id),
	CONSTRAINT ck_task_history_words CHECK (status IN ('QUEUED', 'PENDING', 'RUNNING', 'STOPPING', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'LOST')),
	CONSTRAINT ck_task_history_numbers CHECK (attempt >= 1 AND task_index >= 0 AND (pages IS NULL OR pages >= 0) AND (pages IS NULL OR pages <= 92233720368547) AND (items IS NULL OR items >= 0) AND (items IS NULL OR items <= 92233720368547) AND (errors IS NULL OR errors >= 0) AND (errors IS NULL OR errors <= 92233720368547) AND (bytes IS NULL OR bytes >= 0) AND (bytes IS NULL OR bytes <= 92233720368547) AND (peak_memory IS NULL OR peak_memory >= 0) AND (peak_memory IS NULL OR peak_memory <= 92233720368547) AND retry >= 0),
	CONSTRAINT ck_task_history_times CHECK (status_since >= '1970-01-01' AND status_since < '2101-01-01' AND (killed_at IS NULL OR killed_at >= '1970-01-01' AND killed_at < '2101-01-01') AND (offered_until IS NULL OR offered_until >= '1970-01-01' AND offered_until < '2101-01-01') AND (not_before IS NULL OR not_before >= '1970-01-01' AND not_before < '2101-01-01') AND (absent_since IS NULL OR absent_since >= '1970-01-01' AND absent_since < '2101-01-01') AND (missed_at IS NULL OR missed_at >= '1970-01-01' AND missed_at < '2101-01-01') AND (last_progress_at IS NULL OR last_progress_at >= '1970-01-01' AND last_progress_at < '2101-01-01') AND (deployed_at IS NULL OR deployed_at >= '1970-01-01' AND deployed_at < '2101-01-01') AND (started_at IS NULL OR started_at >= '1970-01-01' AND started_at < '2101-01-01') AND (ended_at IS NULL OR ended_at >= '1970-01-01' AND ended_at < '2101-01-01')),
	CONSTRAINT ck_task_history_end CHECK ((status NOT IN ('CANCELLED', 'FAILED', 'LOST', 'SUCCEEDED')) OR ended_at IS NOT NULL),
	CONSTRAINT ck_task_history_json CHECK (json_type(args) = 'object' AND (fields IS NULL OR json_type(fields) = 'object')),
	CONSTRAINT ck_task_history_types CHECK (typeof(task_id) = 'integer' AND typeof(run_id) = 'integer' AND typeof(attempt) = 'integer' AND typeof(run_attempt) = 'integer' AND typeof(task_index) = 'integer' AND (superseded_by IS NULL OR typeof(superseded_by) = 'integer') AND typeof(status) = 'text' AND status_since LIKE '____-__-__ __:__:__%' AND datetime(status_since) IS NOT NULL AND (outcome IS NULL OR typeof(outcome) = 'text') AND (cause IS NULL OR typeof(cause) = 'text') AND (error IS NULL OR typeof(error) = 'text') AND (cluster IS NULL OR typeof(cluster) = 'text') AND (cluster_name IS NULL OR typeof(cluster_name) = 'text') AND (cluster_uid IS NULL OR typeof(cluster_uid) = 'text') AND (cluster_place IS NULL OR typeof(cluster_place) = 'text') AND (killed_at IS NULL OR killed_at LIKE '____-__-__ __:__:__%' AND datetime(killed_at) IS NOT NULL) AND (node IS NULL OR typeof(node) = 'text') AND (reason IS NULL OR typeof(reason) = 'text') AND (exit_code IS NULL OR typeof(exit_code) = 'integer') AND (exit_signal IS NULL OR typeof(exit_signal) = 'integer') AND (pages IS NULL OR typeof(pages) = 'integer') AND (items IS NULL OR typeof(items) = 'integer') AND (errors IS NULL OR typeof(errors) = 'integer') AND (bytes IS NULL OR typeof(bytes) = 'integer') AND (peak_memory IS NULL OR typeof(peak_memory) = 'integer') AND (resumed IS NULL OR typeof(resumed) = 'integer') AND (resume_note IS NULL OR typeof(resume_note) = 'text') AND (offered_until IS NULL OR offered_until LIKE '____-__-__ __:__:__%' AND datetime(offered_until) IS NOT NULL) AND typeof(retry) = 'integer' AND (not_before IS NULL OR not_before LIKE '____-__-__ __:__:__%' AND datetime(not_before) IS NOT NULL) AND (memory IS NULL OR typeof(memory) = 'text') AND (avoid_node IS NULL OR typeof(avoid_node) = 'text') AND (retry_note IS NULL OR typeof(retry_note) = 'text') AND (pool IS NULL OR typeof(pool) = 'text') AND (priority IS NULL OR typeof(priority) = 'integer') AND typeof(ever_seen) = 'integer' AND (absent_since IS NULL OR absent_since LIKE '____-__-__ __:__:__%' AND datetime(absent_since) IS NOT NULL) AND (missed_at IS NULL OR missed_at LIKE '____-__-__ __:__:__%' AND datetime(missed_at) IS NOT NULL) AND (last_progress_at IS NULL OR last_progress_at LIKE '____-__-__ __:__:__%' AND datetime(last_progress_at) IS NOT NULL) AND (deployed_at IS NULL OR deployed_at LIKE '____-__-__ __:__:__%' AND datetime(deployed_at) IS NOT NULL) AND (started_at IS NULL OR started_at LIKE '____-__-__ __:__:__%' AND datetime(started_at) IS NOT NULL) AND (ended_at IS NULL OR ended_at LIKE '____-__-__ __:__:__%' AND datetime(ended_at) IS NOT NULL))
);

CREATE INDEX ix_task_history_current ON task_history (run_id, superseded_by, status, task_index);

CREATE INDEX ix_task_history_places ON task_history (status, offered_until, pool, priority);

CREATE INDEX ix_task_history_run_id_task_id ON task_history (run_id, task_id);

CREATE TABLE IF NOT EXISTS outbox_delivery (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	seq INTEGER NOT NULL,
	sink VARCHAR(100) NOT NULL,
	status VARCHAR(20) NOT NULL,
	tries INTEGER NOT NULL,
	error TEXT,
	delivered_at DATETIME,
	CONSTRAINT uq_outbox_delivery_seq_sink UNIQUE (seq, sink),
	FOREIGN KEY(seq) REFERENCES outbox_event (seq),
	CONSTRAINT ck_outbox_delivery_numbers CHECK (seq >= 1 AND tries >= 0),
	CONSTRAINT ck_outbox_delivery_times CHECK (delivered_at IS NULL OR delivered_at >= '1970-01-01' AND delivered_at < '2101-01-01'),
	CONSTRAINT ck_outbox_delivery_types CHECK (typeof(id) = 'integer' AND typeof(seq) = 'integer' AND typeof(sink) = 'text' AND typeof(status) = 'text' AND typeof(tries) = 'integer' AND (error IS NULL OR typeof(error) = 'text') AND (delivered_at IS NULL OR delivered_at LIKE '____-__-__ __:__:__%' AND datetime(delivered_at) IS NOT NULL))
);

CREATE INDEX ix_outbox_delivery_sink_seq ON outbox_delivery (sink, seq);

CREATE TABLE IF NOT EXISTS task_log (
	task_id INTEGER NOT NULL,
	log_tail TEXT NOT NULL,
	PRIMARY KEY (task_id),
	FOREIGN KEY(task_id) REFERENCES task_history (task_id),
	CONSTRAINT ck_task_log_types CHECK (typeof(task_id) = 'integer' AND typeof(log_tail) = 'text')
);

CREATE TABLE IF NOT EXISTS task_stats (
	task_id INTEGER NOT NULL,
	stats JSON NOT NULL,
	PRIMARY KEY (task_id),
	FOREIGN KEY(task_id) REFERENCES task_history (task_id),
	CONSTRAINT ck_task_stats_json CHECK (json_type(stats) = 'object'),
	CONSTRAINT ck_task_stats_types CHECK (typeof(task_id) = 'integer')
);
