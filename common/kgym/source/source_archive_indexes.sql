CREATE UNIQUE INDEX file_path ON file (path);
CREATE INDEX symbol_name ON symbol (name);
CREATE INDEX function_place ON symbol (file, line) WHERE kind = 'function';
