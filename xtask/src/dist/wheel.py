"""Writes a wheel that contains one program, always with the same bytes.

Usage: wheel.py FOLDER VERSION TAG PROGRAM README LICENSE SECONDS LEVEL
"""
import base64
import hashlib
import re
import sys
import time
import zipfile

folder, version, tag, program, readme, licence, seconds, level = sys.argv[1:]
# 1.0.0-rc.1 is 1.0.0rc1 on PyPI.
version = re.sub(r"-(a|b|rc)(?:lpha|eta)?\.?", r"\1", version)
name = f"toolwharf-{version}"
info = f"{name}.dist-info"
metadata = f"""Metadata-Version: 2.4
Name: toolwharf
Version: {version}
Summary: One endpoint for many MCP servers
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""
wheel = f"""Wheel-Version: 1.0
Generator: toolwharf
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""


def read(file):
    with open(file, "rb") as opened:
        return opened.read()


files = [
    (f"{name}.data/scripts/toolwharf", read(program), 0o755),
    (f"{info}/licenses/LICENSE", read(licence), 0o644),
    (f"{info}/METADATA", metadata.encode() + read(readme), 0o644),
    (f"{info}/WHEEL", wheel.encode(), 0o644),
]
record = ""
for path, content, _ in files:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record += f"{path},sha256={digest},{len(content)}\n"
files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
with zipfile.ZipFile(f"{folder}/{name}-py3-none-{tag}.whl", "w", zipfile.ZIP_DEFLATED, compresslevel=int(level)) as out:
    for path, content, mode in files:
        entry = zipfile.ZipInfo(path, time.gmtime(int(seconds))[:6])
        entry.create_system = 3
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        out.writestr(entry, content, compresslevel=int(level))
