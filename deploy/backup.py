"""Copy an SQLite database that may be in use: backup.py DATABASE FOLDER. Prints the copy's path."""

import os
import sqlite3
import sys
import time

database, folder = sys.argv[1:]
if os.path.exists(database):
    target = os.path.join(folder, time.strftime("kgym-%Y%m%dT%H%M%SZ.db", time.gmtime()))
    source = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    copy = sqlite3.connect(f"{target}.part")
    with copy:
        source.backup(copy)
    copy.close()
    source.close()
    os.replace(f"{target}.part", target)
    print(target)
