"""A server on loopback with certificates on both sides, and clients of it."""

import http.client
import json
import os
import re
import ssl
import subprocess
import threading
import time
import urllib.parse

DEADLINE_S = 60


class Client:
    """Calls the API with an identity file, on a connection for each request."""

    def __init__(self, port, identity):
        self.port = port
        self.tls = ssl.create_default_context(cafile=identity)
        self.tls.check_hostname = False
        self.tls.load_cert_chain(identity)

    def call(self, method, path, body=None, headers=None, timeout=DEADLINE_S):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=timeout)
        try:
            body = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            text = response.read()
            assert response.status < 400 or response.status == 409, (response.status, text)
            return json.loads(text) if text else {}
        finally:
            connection.close()

    def acquire(self, key, **more):
        return self.call("POST", "/v1/acquire", {"key": key, "ttl_seconds": 300, **more})

    def release(self, lease):
        return self.call("POST", "/v1/release", {"lease_id": lease["lease_id"]})

    def commit(self, lease, document):
        key = urllib.parse.quote(lease["key"], safe="")
        namespace = urllib.parse.quote(lease["namespace"], safe="")
        path = f"/v1/update_state?key={key}&namespace={namespace}"
        return self.call("POST", path, document, {"x-lease-id": lease["lease_id"]})

    def manifest(self, agent, intents, **more):
        intents = [{"predicate": predicate, "object": name} for predicate, name in intents]
        body = {"agent_id": agent, "session_id": agent, "intents": intents, "ttl_ms": 300_000, **more}
        return self.call("POST", "/v1/manifest", body)

    def waits(self, work):
        """Runs a request that waits, until the server ends."""

        def run():
            try:
                work()
            except Exception:  # the server has ended, or the wait
                pass

        threading.Thread(target=run, daemon=True).start()


class World:
    def __init__(self, binaries, directory, *flags):
        self.binaries, self.directory = binaries, directory
        self.data = os.path.join(directory, "data")
        self.port = 0
        self.flags = flags
        self.server = None
        self.start()

    def start(self):
        """Starts the server, or starts it again on the same port."""
        log = os.path.join(self.directory, "lockd.log")
        with open(log, "w") as errors:
            command = [f"{self.binaries}/lockd", "serve", "--listen", f"127.0.0.1:{self.port}", "--data-dir", self.data, *self.flags]
            self.server = subprocess.Popen(command, stderr=errors)
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            assert self.server.poll() is None, open(log).read()
            found = re.search(r"serving url=https://127.0.0.1:(\d+)", open(log).read())
            if found:
                self.port = int(found.group(1))
                return
            time.sleep(0.05)
        raise AssertionError("the server does not listen")

    def stop(self):
        self.server.terminate()
        self.server.wait(DEADLINE_S)

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    @property
    def operator(self):
        return os.path.join(self.data, "client.pem")

    def identity(self, name, *rights):
        """A worker with these rights; the path of its identity file."""
        path = os.path.join(self.directory, f"{name}.pem")
        if not os.path.exists(path):
            command = [f"{self.binaries}/lockd", "auth", "new", "client", "--cn", name, "--out", path]
            for right in rights:
                command += ["--namespace", right]
            subprocess.run([*command, "--ca-in", os.path.join(self.data, "ca", "ca.pem")], check=True, capture_output=True)
        return path

    def client(self, name="operator", *rights):
        return Client(self.port, self.operator if name == "operator" else self.identity(name, *rights))
