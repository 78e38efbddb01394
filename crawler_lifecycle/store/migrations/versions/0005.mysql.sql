CREATE TABLE IF NOT EXISTS process_note (
	kind VARCHAR(20) NOT NULL,
	name VARCHAR(100) NOT NULL,
	note VARCHAR(1000) NOT NULL,
	ends_at DATETIME(6) NOT NULL,
	PRIMARY KEY (kind, name),
	CONSTRAINT ck_process_note_times CHECK (ends_at >= '1970-01-01' AND ends_at < '2101-01-01')
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;
