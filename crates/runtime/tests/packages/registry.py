"""A hostile registry of npm and PyPI on loopback: `registry.py FOLDER MARKER OTHER`.

Prints its port. `npm` is at /npm/, the index of PyPI at /simple/. What a package would run creates MARKER, and `ran` in its
working directory. OTHER is a port that no registry is configured for.
"""

import base64, hashlib, http.server, io, json, os, pathlib, socketserver, subprocess, sys, tarfile, threading, zipfile

folder, marker, other = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
served, packages, wheels = {}, {}, {}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path, origin = self.path, here
        if path.startswith("http://"):
            # The client uses it as a proxy.
            origin = "http://" + path.split("/")[2]
            path = path[len(origin):]
        path = path.split("?")[0].replace("%2f", "/")
        body = served.get(path) or served.get(path.rstrip("/") + "/")
        if body is None and path.startswith("/git/"):
            file = folder / path[1:]
            body = file.read_bytes() if file.is_file() else None
        if body is not None and origin != here:
            body = body.replace(here.encode(), origin.encode())
        self.send_response(404 if body is None else 200)
        kind = "application/json" if path.startswith("/npm/") and not path.endswith(".tgz") else "application/octet-stream"
        self.send_header("content-type", "text/html" if path.startswith("/simple/") else kind)
        self.send_header("content-length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
port = server.server_address[1]
here = f"http://127.0.0.1:{port}"
run = f"touch {marker} ran"


def tarball(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(f"package/{name}")
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def npm(name, files=None, integrity=True, **manifest):
    manifest = {"name": name, "version": "1.0.0", "bin": {name: "run.js"}, **manifest}
    body = tarball({"package.json": json.dumps(manifest), "run.js": "#!/usr/bin/env node\n", **(files or {})})
    served[f"/npm/{name}/-/{name}-1.0.0.tgz"] = body
    dist = {"tarball": f"{here}/npm/{name}/-/{name}-1.0.0.tgz"}
    if integrity:
        dist["integrity"] = "sha512-" + base64.b64encode(hashlib.sha512(body).digest()).decode()
    if "npm-shrinkwrap.json" in (files or {}):
        manifest["_hasShrinkwrap"] = True
    manifest["dist"] = dist
    packument = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": manifest}}
    served[f"/npm/{name}"] = json.dumps(packument).encode()


def repository(name, files):
    """A repository on the disk that is also served over plain HTTP."""
    work = folder / "work" / name
    for file, content in files.items():
        path = work / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    bare = folder / "git" / f"{name}.git"
    for command in [
        ["init", "-q", str(work)],
        ["-C", str(work), "add", "-A"],
        ["-C", str(work), "commit", "-q", "-m", "a"],
        ["clone", "-q", "--bare", str(work), str(bare)],
        ["-C", str(bare), "update-server-info"],
    ]:
        subprocess.run(git + command, check=True, stdout=subprocess.DEVNULL)


scripts = {name: run for name in ["preinstall", "install", "postinstall", "prepare", "prepack", "preprepare", "postprepare"]}
git = f"git+{here}/git/evil.git"
repository("inner", {"package.json": json.dumps({"name": "inner", "version": "1.0.0"})})
repository("evil", {
    # If a repository must be prepared, npm installs its dependencies with the settings in the repository.
    ".npmrc": "git=./git\n",
    "git": f"#!/bin/sh\n{run}\nexit 1\n",
    "package.json": json.dumps({
        "name": "evil", "version": "1.0.0", "scripts": {"prepare": "true"},
        "dependencies": {"inner": f"git+{here}/git/inner.git"},
    }),
})
(folder / "local").mkdir()
(folder / "local/package.json").write_text(json.dumps({"name": "local", "version": "1.0.0", "scripts": scripts}))
elsewhere = tarball({"package.json": json.dumps({"name": "elsewhere", "version": "1.0.0", "scripts": scripts})})
served["/raw/elsewhere.tgz"] = elsewhere
(folder / "local.tgz").write_bytes(elsewhere)

npm("plain")
npm("scripts", scripts=scripts)
npm("aliased", dependencies={"other": "npm:scripts@1.0.0"})
npm("npmrc", {".npmrc": f"git=./git\nregistry=http://127.0.0.1:{other}/\nignore-scripts=false\n", "git": f"#!/bin/sh\n{run}\n"},
    scripts=scripts)
npm("bundled", {"node_modules/in/package.json": json.dumps({"name": "in", "version": "1.0.0", "scripts": scripts}),
                "node_modules/in/binding.gyp": "{}"},
    dependencies={"in": "1.0.0"}, bundleDependencies=["in"])
npm("gyp", {"binding.gyp": json.dumps({"targets": [{"target_name": "a", "type": "none", "x": f"<!({run})"}]})})
npm("git-http", dependencies={"evil": git})
npm("git-deep", dependencies={"git-http": "1.0.0"})
npm("git-file", dependencies={"evil": f"git+file://{folder}/git/evil.git"})
npm("git-ssh", dependencies={"evil": f"git+ssh://git@127.0.0.1:{other}/evil.git"})
npm("git-optional", optionalDependencies={"evil": git})
npm("git-peer", peerDependencies={"evil": git})
npm("tarball", dependencies={"elsewhere": f"{here}/raw/elsewhere.tgz"})
npm("tarball-other", dependencies={"elsewhere": f"http://127.0.0.1:{other}/elsewhere.tgz"})
npm("folder", dependencies={"local": f"file:{folder}/local"})
npm("folder-up", dependencies={"local": "file:../../.."})
npm("folder-tarball", dependencies={"local": f"file:{folder}/local.tgz"})
npm("nested", dependencies={"tarball": "1.0.0", "folder": "1.0.0"})
npm("unhashed", integrity=False)
npm("shrinkwrap", {"npm-shrinkwrap.json": json.dumps({
    "name": "shrinkwrap", "version": "1.0.0", "lockfileVersion": 3, "requires": True,
    "packages": {"": {"dependencies": {"evil": "1.0.0"}}, "node_modules/evil": {"version": "1.0.0", "resolved": git}},
})}, dependencies={"evil": "1.0.0"})
# npm rejects archives with a compression ratio of 1000.
npm("large", {"noise": os.urandom(200_000), "zeros": b"\0" * (64 << 20)})
npm("many", {f"files/{number}": "" for number in range(4000)})


def wheel(name, requires=(), files=None):
    file, info = f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.py", "def main(): pass")
        for path, content in (files or {}).items():
            archive.writestr(path, content)
        requires = "".join(f"Requires-Dist: {one}\n" for one in requires)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
        archive.writestr(f"{info}/RECORD", "\n".join(f"{one},," for one in archive.namelist() + [f"{info}/RECORD"]))
    serve(name, file, out.getvalue())


def serve(name, file, body):
    served[f"/files/{file}"] = body
    link = f"<a href='/files/{file}#sha256={hashlib.sha256(body).hexdigest()}'>{file}</a>"
    served[f"/simple/{name}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()


def source(name, files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(f"{name}-1.0/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    serve(name, f"{name}-1.0.tar.gz", out.getvalue())


touch = f"import pathlib, sys; [pathlib.Path(one).touch() for one in ({marker!r}, 'ran', sys.prefix + '/ran')]"
wheel("pyplain")
wheel("pth", files={"pth.pth": touch, "sitecustomize.py": touch})
source("setup", {"setup.py": touch, "PKG-INFO": "Metadata-Version: 2.1\nName: setup\nVersion: 1.0\n"})
source("backend", {
    "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'own'\nbackend-path = ['.']\n", "own.py": touch,
    "PKG-INFO": "Metadata-Version: 2.1\nName: backend\nVersion: 1.0\n",
})
wheel("deep", ["setup"])
wheel("direct", [f"elsewhere @ {here}/raw/elsewhere-1.0.tar.gz"])
wheel("directother", [f"elsewhere @ http://127.0.0.1:{other}/elsewhere-1.0-py3-none-any.whl"])
wheel("directgit", [f"evil @ {git}"])
wheel("directfile", [f"elsewhere @ file://{folder}/local.tgz"])
wheel("pylarge", files={"zeros": b"\0" * (64 << 20)})

print(port, flush=True)
server.serve_forever()
