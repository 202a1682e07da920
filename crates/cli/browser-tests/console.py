"""The web console in a real browser. Every test is a function `test_…`; a failure leaves a screenshot beside its data."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import urllib.parse

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

import scene
from world import World

PAGES = ["overview", "keys", "waits", "agents", "events", "namespaces"]
PASSPHRASE = "correct horse battery"
HOSTILE = ["<script>window.hacked=1</script>", "<img src=x onerror=window.hacked=1>", "evil\u202egnp.exe", "a\u200bb", "x" * 512, "\u05e9\u05dc\u05d5\u05dd", "'\"`{{7*7}}"]


class Browser:
    """Pages of the console. Everything that a page logs or fails to load is kept."""

    def __init__(self, chromium, world):
        self.chromium, self.world, self.problems, self.contexts = chromium, world, [], []
        self.p12 = os.path.join(world.directory, "operator.p12")
        passphrase = os.path.join(world.directory, "passphrase")
        with open(os.open(passphrase, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(PASSPHRASE)
        command = [f"{world.binaries}/lockd", "auth", "export", "--in", world.operator, "--p12", self.p12, "--pass-file", passphrase, "--force"]
        subprocess.run(command, check=True, capture_output=True)

    def context(self, certificate=True, pem=None, **options):
        """`certificate`: the operator's, as it was exported for a browser; `pem`: another identity's file."""
        options.setdefault("viewport", {"width": 1280, "height": 800})
        if pem:
            options["client_certificates"] = [{"origin": self.world.url, "certPath": pem, "keyPath": pem}]
        elif certificate:
            options["client_certificates"] = [{"origin": self.world.url, "pfxPath": self.p12, "passphrase": PASSPHRASE}]
        context = self.chromium.new_context(ignore_https_errors=True, **options)
        context.set_default_timeout(20_000)
        self.contexts.append(context)
        return context

    def page(self, path="#/overview", **options):
        page = self.context(**options).new_page()
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.foreign(request.url))
        page.goto(f"{self.world.url}/ui/{path}")
        expect(page.locator("#live")).to_have_text("Live")
        return page

    def foreign(self, url):
        if not url.startswith((self.world.url, "http://127.0.0.1:", "data:")):
            self.problems.append(f"a request to another host: {url}")

    def close(self):
        while self.contexts:
            self.contexts.pop().close()


class Clicks:
    """Counts: a task has at most three."""

    def __init__(self):
        self.count = 0

    def __call__(self, locator):
        self.count += 1
        assert self.count <= 3, "more than three clicks"
        locator.click()


def key_path(name, namespace=None):
    query = {"name": name, **({"ns": namespace} if namespace else {})}
    return "#/key?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote)


# The six tasks.


def test_who_holds_a_key_and_since_when(browser, leases):
    page, click = browser.page(), Clicks()
    click(page.get_by_role("link", name="Keys", exact=True))
    page.get_by_role("searchbox").fill("deploy/prod")
    row = page.get_by_role("row").filter(has_text="deploy/production")
    expect(row.locator(".holder")).to_contain_text("ci-runner")
    expect(row.get_by_role("cell").nth(2)).to_contain_text("ago")
    expect(row.get_by_role("cell").nth(4)).to_have_text("3")
    assert "prefix=deploy%2Fprod" in page.url, "the view is in the URL"
    again = browser.page(page.url.split("/ui/")[1])
    expect(again.get_by_role("searchbox")).to_have_value("deploy/prod")


def test_who_waits_and_why(browser, leases):
    page, click = browser.page(), Clicks()
    click(page.get_by_role("link", name="Waits", exact=True))
    waiter = page.get_by_role("table", name="Waiters", exact=True).get_by_role("row").filter(has_text="formatter")
    expect(waiter).to_contain_text("refactor")
    expect(waiter).to_contain_text("format the tree")
    expect(page.locator(".graph .node")).not_to_have_count(0)
    expect(page.get_by_role("table", name="Refused by wait-die")).to_contain_text("hothead")


def test_the_agent_that_blocks_the_most(browser, leases):
    page, click = browser.page(), Clicks()
    click(page.get_by_role("link", name="Waits", exact=True))
    first = page.get_by_role("table", name="Blocks the most").locator("tbody tr").first
    expect(first).to_contain_text("ci-runner")
    expect(first).to_contain_text("deploy/production")
    expect(page.locator(".graph .node.most")).to_contain_text("ci-runner")


def test_the_last_hour_of_a_key(browser, leases):
    page, click = browser.page(), Clicks()
    click(page.get_by_role("link", name="Keys", exact=True))
    click(page.locator(".rows").get_by_role("link", name="deploy/production"))
    expect(page.locator(".timeline rect.bar")).to_have_count(6)
    expect(page.locator(".timeline rect.wait")).to_have_count(3)
    changes = page.get_by_role("table", name="Changes")
    for event, count in [("granted", 6), ("released", 4), ("committed", 5), ("expired", 1)]:
        expect(changes.locator(".badge", has_text=event)).to_have_count(count)
    first = changes.locator("tbody tr").last
    expect(first.locator("td").nth(3)).to_have_text("1")
    token = int(first.locator("td").nth(4).inner_text())
    assert token < leases["deploy/production"]["fencing_token"]
    expect(page.get_by_text("The history begins at")).to_contain_text("the server started")
    expect(page.locator(".document")).to_contain_text('"release": "v2.0"')
    expect(page.get_by_role("table", name="Queue").locator("tbody tr")).to_have_count(3)


def test_revoke_and_reclaim(browser, leases):
    worker = browser.world.client("ci-runner", "default:rwp", "orders:rwp")
    lease = worker.acquire("stuck")
    page, click = browser.page("#/keys"), Clicks()
    click(page.get_by_role("link", name="stuck"))
    click(page.get_by_role("button", name="Revoke…"))
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Revoke token {lease['fencing_token']}?")
    click(dialog.get_by_role("button", name="Revoke and reclaim"))
    expect(page.locator(".holder .badge")).to_have_text("free")
    expect(page.get_by_role("table", name="Changes").locator(".badge", has_text="revoked")).to_have_count(1)
    assert worker.call("GET", "/v1/resource/KEY:stuck/state")["state"] == "available"
    # In two steps, which leaves the time for the holder to stop.
    lease = worker.acquire("stuck")
    page.get_by_role("button", name="Revoke…").click()
    page.get_by_role("button", name=f"Revoke token {lease['fencing_token']}").click()
    expect(page.locator(".holder .badge")).to_have_text("revoking")
    page.get_by_role("button", name="Reclaim…").click()
    page.get_by_role("button", name=f"Reclaim from token {lease['fencing_token']}").click()
    expect(page.locator(".holder .badge")).to_have_text("free")


def test_edit_a_document_under_a_lease(browser, leases):
    page, click = browser.page(key_path("reports/weekly")), Clicks()
    click(page.get_by_role("button", name="Edit…"))
    text = page.get_by_role("textbox", name="Document")
    expect(text).to_be_enabled()
    assert "12345678901234567890" in text.input_value(), "a number beyond 2^53 is not rounded"
    text.fill(text.input_value().replace("false", "true"))
    click(page.get_by_role("button", name="Commit"))
    expect(page.locator(".document")).to_contain_text('"done": true')
    expect(page.locator(".document")).to_contain_text("12345678901234567890")
    expect(page.locator(".holder .badge")).to_have_text("free")
    # A key that is held is not edited, and says by whom; another page closes the dialog.
    page.goto(f"{browser.world.url}/ui/{key_path('deploy/production')}")
    page.get_by_role("button", name="Edit…").click()
    expect(page.get_by_role("alert")).to_contain_text("Held by ci-runner")
    browser.problems[:] = [problem for problem in browser.problems if "status of 409" not in problem]
    # Cancelling releases the lease.
    page.goto(f"{browser.world.url}/ui/{key_path('reports/weekly')}")
    page.get_by_role("button", name="Edit…").click()
    expect(text).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.locator(".holder .badge")).to_have_text("free")


# What else is promised.


def test_workers_are_offered_nothing_that_they_may_not_do(browser, leases):
    pem = browser.world.identity("reader", "default:r")
    page = browser.page(key_path("deploy/production"), pem=pem)
    expect(page.locator(".holder dl")).to_contain_text("ci-runner")
    expect(page.get_by_text("needs the right p")).to_be_visible()
    assert page.get_by_role("button", name="Revoke…").count() == 0
    assert page.get_by_role("button", name="Edit…").count() == 0
    page.get_by_role("link", name="Agents", exact=True).click()
    expect(page.get_by_role("table", name="Agents")).to_contain_text("refactor")
    assert page.get_by_role("button", name="Pause…").count() == 0
    page.get_by_role("link", name="Namespaces", exact=True).click()
    expect(page.get_by_role("table", name="Namespaces")).to_contain_text("see")
    assert page.get_by_text("Quotas and pauses").count() == 0


def test_agents_are_paused_and_resumed(browser, leases):
    page = browser.page("#/agents")
    row = page.get_by_role("table", name="Agents").get_by_role("row").filter(has_text="docs")
    expect(row).to_contain_text("FILE:/src/parser.rs")
    expect(row).to_contain_text("ago")
    row.get_by_role("button", name="Pause…").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    expect(row.locator(".badge")).to_have_text("paused")
    row.get_by_role("button", name="Resume…").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(row.locator(".badge")).to_have_text("alive")


def test_events_are_live_filtered_and_pausable(browser, leases):
    worker = browser.world.client("ci-runner", "default:rwp", "orders:rwp")
    page = browser.page("#/events")
    worker.release(worker.acquire("seen"))
    table = page.get_by_role("table", name="Events")
    expect(table.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Event", exact=True).select_option("granted")
    expect(table.locator("tbody tr")).to_have_count(1)
    assert "event=granted" in page.url
    page.get_by_role("button", name="Pause").click()
    worker.release(worker.acquire("unseen"))
    expect(page.get_by_text("more have arrived")).to_be_visible()
    expect(table.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    expect(table.locator("tbody tr")).to_have_count(2)


def test_keyboard_alone(browser, leases):
    page = browser.page("#/keys")
    expect(page.get_by_role("link", name="deploy/production")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("deploy/")
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.row') !== null"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", f"the focus is visible: {outline}"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("deploy/production")
    page.get_by_role("button", name="Revoke…").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_narrow_screens(browser, leases):
    page = browser.page(viewport={"width": 320, "height": 640})
    for path in [*(f"#/{name}" for name in PAGES), key_path("deploy/production")]:
        page.goto(f"{browser.world.url}/ui/{path}")
        page.wait_for_timeout(500)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 320, f"{path} is {width} px wide"


def test_hostile_names(browser, leases):
    worker = browser.world.client("ci-runner", "default:rwp", "orders:rwp")
    held = [worker.acquire(name, namespace="orders") for name in HOSTILE]
    for lease, name in zip(held, HOSTILE):
        worker.commit(lease, {name[:40]: name})
    page = browser.page("#/keys?ns=orders")
    expect(page.locator(".rows .row")).to_have_count(len(HOSTILE))
    assert page.locator(".rows script, .rows img").count() == 0
    text = page.locator(".rows").inner_text()
    assert "\u202e" not in text and "\\u{202e}" in text and "\\u{200b}" in text
    for name in HOSTILE:
        page.goto(f"{browser.world.url}/ui/{key_path(name, 'orders')}")
        expect(page.locator(".holder dl")).to_contain_text("ci-runner")
        expect(page.locator(".document")).to_be_visible()
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 1280, (name, width)
        assert page.evaluate("window.hacked") is None
        assert not set("\u202e\u200b") & set(page.locator("main").inner_text())
    for lease in held:
        worker.release(lease)


def test_ten_thousand_keys_are_few_elements_and_scroll(browser, leases):
    operator = browser.world.client("bulk", "*:rw")
    for start in range(0, 10_000, 125):
        resources = [{"kind": "KEY", "name": f"many/{number:05}"} for number in range(start, start + 125)]
        operator.call("POST", "/v1/acquire", {"namespace": "many", "resources": resources, "ttl_seconds": 300})
    page = browser.page("#/keys?ns=many")
    expect(page.get_by_text("10,000 of 10,000 keys")).to_be_visible()
    frames = page.evaluate(
        """() => new Promise((done) => {
          const scroller = document.querySelector('.scroller'), start = performance.now(), times = [];
          let most = 0;
          const step = () => {
            times.push(performance.now());
            scroller.scrollTop += 400;
            most = Math.max(most, document.querySelectorAll('.row').length);
            if (performance.now() - start < 1500) requestAnimationFrame(step);
            else done({ most, rate: (times.length - 1) / ((times.at(-1) - times[0]) / 1000), top: scroller.scrollTop });
          };
          step();
        })""")
    print(f"   10,000 keys: at most {frames['most']} row elements, {frames['rate']:.0f} frames a second")
    assert frames["most"] <= 200, frames
    page.evaluate("document.querySelector('.scroller').scrollTop = 1e9")
    expect(page.get_by_role("link", name="many/09999")).to_be_visible()
    page.get_by_role("link", name="many/09999").focus()
    page.keyboard.press("Home")
    expect(page.get_by_role("link", name="many/00000")).to_be_focused()


def test_a_broken_stream_is_shown_and_resumed(browser, leases):
    page = browser.page("#/events")
    browser.world.client().release(browser.world.client().acquire("before"))
    expect(page.get_by_role("table", name="Events")).to_contain_text("before")
    sent = []
    page.on("request", lambda request: "/v1/events" in request.url and sent.append(request.headers.get("last-event-id")))
    # Chromium's own switch for being offline ends no open stream: the response is cut by the test.
    page.route("**/v1/events*", lambda route: route.abort())
    page.evaluate("window.stop()")
    expect(page.locator("#live")).to_have_text("Disconnected")
    browser.world.client().release(browser.world.client().acquire("meanwhile"))
    page.unroute("**/v1/events*")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.get_by_role("table", name="Events")).to_contain_text("meanwhile")
    assert any(sent), "resumed with Last-Event-ID"
    browser.problems[:] = [problem for problem in browser.problems if "ERR_FAILED" not in problem]


def test_pages_say_that_the_server_is_gone_and_come_back(browser, leases):
    """A page that was opened for the first time while the server was gone was only a failed import."""
    page = browser.page()
    page.wait_for_timeout(500)
    page.route("**/*", lambda route: route.abort())
    page.evaluate("window.stop()")
    expect(page.locator("#live")).to_have_text("Disconnected")
    page.get_by_role("link", name="Agents", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("the server cannot be reached")
    page.unroute("**/*")
    expect(page.get_by_role("table", name="Agents")).to_contain_text("refactor")
    browser.problems[:] = [problem for problem in browser.problems if "ERR_FAILED" not in problem]


def test_a_grant_is_on_the_screen_at_once(browser, leases):
    page = browser.page(key_path("watched"))
    expect(page.locator(".holder .badge")).to_have_text("free")
    worker = browser.world.client("ci-runner", "default:rwp", "orders:rwp")
    page.evaluate("""() => { window.shown = []; new MutationObserver(() => {
      const text = document.querySelector('.holder .badge')?.textContent;
      if (text && text !== window.shown.at(-1)?.text) window.shown.push({ text, at: Date.now() });
    }).observe(document.querySelector('main'), { childList: true, subtree: true, characterData: true }); }""")
    taken = []
    for number in range(1, 6):
        lease = worker.acquire("watched")
        done = time.time() * 1000
        expect(page.locator(".holder .badge")).to_have_text("active")
        taken.append(page.evaluate("window.shown.filter((one) => one.text === 'active').at(-1).at") - done)
        worker.release(lease)
        expect(page.locator(".holder .badge")).to_have_text("free")
    taken.sort()
    print(f"   from the grant's response to the screen: median {taken[2]:.0f} ms, longest {taken[-1]:.0f} ms (aim 200 ms)")


def test_first_paint(browser, leases):
    page = browser.page()
    page.reload()
    expect(page.locator(".tile")).not_to_have_count(0)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    ready = page.evaluate("performance.now()")
    print(f"   first paint after {paint:.0f} ms (aim 300 ms); figures shown by {ready:.0f} ms")


def test_accessibility(browser, leases):
    for scheme in ["light", "dark"]:
        page = browser.page(color_scheme=scheme)
        for path in [*(f"#/{name}" for name in PAGES), key_path("deploy/production")]:
            page.goto(f"{browser.world.url}/ui/{path}")
            page.wait_for_timeout(700)
            found = Axe().run(page).response["violations"]
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            details = [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious]
            assert not serious, (scheme, path, details)
        page.goto(f"{browser.world.url}/ui/{key_path('deploy/production')}")
        page.get_by_role("button", name="Revoke…").click()
        serious = [one["id"] for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, serious


def test_no_certificate_no_page(browser, leases):
    page = browser.context(certificate=False).new_page()
    try:
        page.goto(f"{browser.world.url}/ui/")
        raise AssertionError("a page without a certificate")
    except Exception as error:  # noqa: BLE001 — Playwright has one type for all failures of the network
        assert "net::ERR" in str(error), error


def test_through_the_proxy(browser, leases):
    world = browser.world
    command = [f"{world.binaries}/lockc", "console", "-s", f"127.0.0.1:{world.port}", "-i", world.operator, "--output", "json"]
    environment = {**os.environ, "XDG_STATE_HOME": os.path.join(world.directory, "state")}
    proxy = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        url = json.loads(proxy.stdout.readline())["url"]
        context = browser.context(certificate=False)
        page = context.new_page()
        page.on("pageerror", lambda error: browser.problems.append(str(error)))
        page.goto(url)
        expect(page.locator("#live")).to_have_text("Live")
        assert "token" not in page.url, page.url
        expect(page.locator("#who")).to_contain_text("operator")
        page.get_by_role("link", name="Keys", exact=True).click()
        page.locator(".rows").get_by_role("link", name="deploy/production").click()
        expect(page.locator(".holder dl")).to_contain_text("ci-runner")
        worker = world.client("ci-runner", "default:rwp", "orders:rwp")
        worker.release(worker.acquire("proxied"))
        second = context.new_page()
        second.goto(url.split("#")[0] + key_path("proxied"))
        expect(second.get_by_role("table", name="Changes")).to_contain_text("granted")
        # The link was used: another browser gets nothing with it.
        stranger = browser.context(certificate=False).new_page()
        stranger.goto(url)
        expect(stranger.get_by_role("alert")).to_contain_text("session is over")
    finally:
        proxy.send_signal(signal.SIGINT)
        assert proxy.wait(30) == 0


SHOTS = [
    ("overview", "#/overview", "light"), ("keys", "#/keys", "dark"), ("key", key_path("deploy/canary"), "light"),
    ("waits", "#/waits", "dark"),
]


def take_screenshots(browser, directory):
    os.makedirs(directory, exist_ok=True)
    for name, path, scheme in SHOTS:
        page = browser.page(path, color_scheme=scheme, viewport={"width": 1200, "height": 750})
        if name == "overview":
            scene.take_turns(browser.world, "deploy/canary", seconds=40)
            page.wait_for_timeout(42_000)
        page.wait_for_timeout(1500)
        page.screenshot(path=os.path.join(directory, f"console-{name}.png"))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--binaries", required=True)
    arguments.add_argument("--directory", required=True)
    arguments.add_argument("--screenshots", help="only take the pictures of the documentation, into this directory")
    arguments.add_argument("only", nargs="*", help="parts of the names of tests")
    arguments = arguments.parse_args()
    chromium_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium_path:
        sys.exit("no chromium; install Debian's package, or name one with CHROMIUM=")
    world = World(arguments.binaries, arguments.directory, "--store", "mem://", "--max-leases-per-identity", "20000")
    failed = 0
    try:
        leases = scene.play(world)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])
            browser = Browser(chromium, world)
            if arguments.screenshots:
                return take_screenshots(browser, arguments.screenshots)
            for name, test in [(name, test) for name, test in globals().items() if name.startswith("test_")]:
                if arguments.only and not any(part in name for part in arguments.only):
                    continue
                failed += not run(name, test, browser, leases)
            chromium.close()
    finally:
        world.stop()
    sys.exit(1 if failed else 0)


def run(name, test, browser, leases):
    begin = time.monotonic()
    try:
        test(browser, leases)
        assert not browser.problems, browser.problems
        print(f"ok {name} ({time.monotonic() - begin:.1f} s)", flush=True)
        return True
    except Exception:  # noqa: BLE001 — every failure of a test is reported, and the others run
        traceback.print_exc()
        for number, context in enumerate(browser.contexts):
            for page in context.pages:
                page.screenshot(path=os.path.join(browser.world.directory, f"{name}-{number}.png"))
        print(f"FAILED {name}", flush=True)
        return False
    finally:
        browser.problems.clear()
        browser.close()


if __name__ == "__main__":
    main()
