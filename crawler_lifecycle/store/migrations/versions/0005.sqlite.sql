CREATE TABLE IF NOT EXISTS process_note (
	kind VARCHAR(20) NOT NULL,
	name VARCHAR(100) NOT NULL,
	note VARCHAR(1000) NOT NULL,
	ends_at DATETIME NOT NULL,
	PRIMARY KEY (kind, name),
	CONSTRAINT ck_process_note_times CHECK (ends_at >= '1970-01-01' AND ends_at < '2101-01-01'),
	CONSTRAINT ck_process_note_types CHECK (typeof(kind) = 'text' AND typeof(name) = 'text' AND typeof(note) = 'text' AND ends_at LIKE '____-__-__ __:__:__%' AND datetime(ends_at) IS NOT NULL)
);
