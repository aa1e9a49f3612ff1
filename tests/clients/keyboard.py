#!/usr/bin/env python3
"""Drives the page of 'forebay report' by the keyboard alone, in headless Chromium.

    keyboard.py PAGE RESULTS.json

The browser is steered by its debugging pipe: real key events, no click and no call of the page's own functions.
"""

import itertools
import json
import os
import subprocess
import sys

KEYS = {
    "Tab": (9, None), "Enter": (13, "\r"), " ": (32, " "), "Escape": (27, None), "End": (35, None), "Home": (36, None),
    "ArrowLeft": (37, None), "ArrowUp": (38, None), "ArrowRight": (39, None), "ArrowDown": (40, None),
}
SHIFT = 8
# What the page says of the element that has the focus.
FOCUSED = """(() => {
  const e = document.activeElement;
  if (!e || e === document.body || e === document.documentElement) return null;
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  return { at: [...document.querySelectorAll('*')].indexOf(e), tag: e.tagName, kind: e.className,
           name: (e.getAttribute('aria-label') || e.textContent).trim().slice(0, 60),
           seen: box.bottom > 0 && box.top < innerHeight && box.width > 0,
           ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 };
})()"""
# The elements that a reader must reach, in the order of the page.
REACHABLE = """[...document.querySelectorAll('a[href],button,summary,[tabindex="0"]')]
  .filter(e => e.checkVisibility() && e.getBoundingClientRect().width > 0)
  .map(e => [...document.querySelectorAll('*')].indexOf(e))"""


class Browser:
    """Chromium, behind its pipe."""

    def __init__(self, page):
        theirs, self.write = os.pipe()
        self.read, ours = os.pipe()
        words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        words += ["--window-size=1000,900", "about:blank"]
        low, high = theirs, ours

        def pipes():
            # The browser reads from 3 and writes to 4. Both are moved out of the way first.
            a, b = os.dup(low), os.dup(high)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(words, preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(ours)
        self.numbers = itertools.count(1)
        self.session = None
        self.rest = b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.failures = []
        # Without it the page would still be scrolling to the focus when it is looked at.
        still = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        self.call("Emulation.setEmulatedMedia", features=still)
        self.call("Page.navigate", url=page)
        while self.run("document.readyState") != "complete" or not self.run("!!document.querySelector('canvas')"):
            pass
        self.call("Page.bringToFront")

    def message(self):
        while b"\0" not in self.rest:
            more = os.read(self.read, 1 << 20)
            if not more:
                sys.exit("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        number = next(self.numbers)
        request = {"id": number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("method") == "Runtime.exceptionThrown":
                self.failures.append(message["params"]["exceptionDetails"].get("text", "an exception"))
            if message.get("id") == number:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]

    def run(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{expression[:80]}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def press(self, key, modifiers=0):
        code, text = KEYS[key]
        event = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def focused(self):
        return self.run(FOCUSED)

    def tab_to(self, what, wanted):
        """Tabs on until the focus is where `wanted` says, once around the page at most."""
        for _ in range(2000):
            self.press("Tab")
            here = self.focused()
            if here and wanted(here):
                return here
        fail(f"Tab does not lead to {what}")

    def close(self):
        self.process.terminate()
        self.process.wait()


def fail(message):
    print(f"keyboard: {message}")
    raise SystemExit(1)


def around(browser):
    """One time around the page by Tab, and back: each stop once, in order, seen and marked."""
    reachable = browser.run(REACHABLE)
    stops = []
    while True:
        browser.press("Tab")
        here = browser.focused()
        if here is None or (stops and here["at"] == stops[0]["at"]):
            break
        stops.append(here)
        if len(stops) > 3 * len(reachable):
            fail(f"Tab does not come around: {stops[-3:]}")
    missed = [at for at in reachable if at not in [stop["at"] for stop in stops]]
    if missed:
        fail(f"Tab does not lead to {len(missed)} elements, the first is number {missed[0]} of {reachable}")
    places = [stop["at"] for stop in stops]
    if places != sorted(places):
        fail("the order of Tab is not that of the page")
    for stop in stops:
        if not stop["seen"] or not stop["ring"]:
            fail(f"the focus is not seen: {stop}")
        if not stop["name"]:
            fail(f"a stop has no name: {stop}")
    browser.run("document.activeElement.blur()")
    browser.run("document.querySelector('footer').tabIndex = -1; document.querySelector('footer').focus()")
    back = []
    for _ in stops:
        browser.press("Tab", SHIFT)
        back.append(browser.focused())
    if [stop["at"] for stop in back if stop] != places[::-1]:
        fail("Shift and Tab do not lead back the same way")
    return stops


def number(text):
    return float(text.replace("\u202f", "").replace("\u2212", "-"))


def chart_by_arrows(browser, results):
    """The first chart's values, read by arrow keys, are those of the results."""
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    browser.tab_to("a chart", lambda here: here["kind"] == "area")
    where = browser.run("(n => [n.dataset.experiment, +n.dataset.chart])(document.activeElement.closest('.chart'))")
    chart = next(e for e in results["experiments"] if e["id"] == where[0])["charts"][where[1]]
    spoken = "document.activeElement.parentNode.querySelector('.spoken').textContent"
    title = browser.run("(h => h ? h.textContent : null)(document.activeElement.parentNode.querySelector('h4'))")
    series = [s for s in chart["series"] if title is None or (s.get("group") or s["name"]) == title]
    values = [point for s in series for point in s["points"] if point["y"] is not None]
    if chart["kind"] == "line":
        places = sorted({point["x"] for point in values})
    else:
        places = list(dict.fromkeys(str(point["x"]) for point in values))
    tip = """[...document.activeElement.querySelectorAll('div')].filter(d => d.style.zIndex &&
      d.style.visibility !== 'hidden' && d.style.opacity !== '0').map(d => d.textContent).join()"""

    def expect(key, place):
        browser.press(key)
        said = browser.run(spoken)
        for s in series:
            for point in s["points"]:
                if str(point["x"]) != str(place) or point["y"] is None:
                    continue
                found = said.split(s["name"] + " ", 1)
                if len(found) < 2:
                    fail(f"'{said}' lacks {s['name']} at {place}")
                value = number(found[1].split(";")[0].split(" ")[0])
                if abs(value - point["y"]) > max(abs(point["y"]) * 1e-3, 0.5 if abs(point["y"]) >= 1000 else 1e-12):
                    fail(f"'{said}' is not {point['y']} at {place}")

    expect("ArrowRight", places[0])
    shown = browser.run(tip)
    if not any(s["name"] in shown for s in series):
        fail(f"an arrow key shows no values beside the pointer: '{shown}'")
    for place in places[1:4]:
        expect("ArrowRight", place)
    expect("End", places[-1])
    expect("ArrowRight", places[-1])
    if len(places) > 1:
        expect("ArrowLeft", places[-2])
    expect("Home", places[0])
    browser.press("Escape")
    if browser.run(spoken) != "":
        fail("Escape leaves the values")
    return f"{len(places)} places of '{chart['title']}'"


def series_by_legend(browser):
    """Space and Enter on a legend switch its series off and on again."""
    browser.tab_to("a legend", lambda here: here["tag"] == "BUTTON" and browser.run(
        "!!document.activeElement.closest('.legend')"))
    picture = "document.activeElement.closest('.panel').querySelector('canvas').toDataURL()"
    pressed = "document.activeElement.getAttribute('aria-pressed')"
    before = browser.run(picture)
    browser.press(" ")
    if browser.run(pressed) != "false" or browser.run(picture) == before:
        fail("Space on a legend does not switch its series off")
    # The choice outlives a chart that is drawn anew, and so does the focus.
    name = browser.run("document.activeElement.textContent")
    browser.run("document.getElementById('theme').click(); document.getElementById('theme').click()")
    if browser.run("document.activeElement.textContent") != name or browser.run(pressed) != "false":
        fail("a chart that is drawn anew has lost the focus, or what was switched off")
    browser.press("Enter")
    if browser.run(pressed) != "true" or browser.run(picture) != before:
        fail("Enter on a legend does not switch its series on")


def buttons(browser):
    """Enter and Space on the page's buttons, and on what is folded."""
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    browser.tab_to("the theme", lambda here: browser.run("document.activeElement.id") == "theme")
    theme = browser.run("document.documentElement.dataset.theme")
    browser.press("Enter")
    if browser.run("document.documentElement.dataset.theme") == theme:
        fail("Enter does not switch light and dark")
    browser.press(" ")
    browser.tab_to("the scale of a chart", lambda here: here["kind"] == "scale")
    label = browser.run("document.activeElement.textContent")
    browser.press("Enter")
    if browser.run("document.activeElement.textContent") == label:
        fail("Enter does not switch the scale of a chart")
    browser.press("Enter")
    browser.tab_to("data of a chart", lambda here: here["tag"] == "SUMMARY")
    browser.press("Enter")
    if not browser.run("document.activeElement.parentNode.open"):
        fail("Enter does not unfold the data of a chart")
    browser.press("Tab")
    if "scroll" not in browser.focused()["kind"]:
        fail("a long table cannot be scrolled by the keyboard")


def main():
    page, results = sys.argv[1], json.load(open(sys.argv[2]))
    browser = Browser(page)
    try:
        stops = around(browser)
        charts = sum(stop["kind"] == "area" for stop in stops)
        if charts < sum(len(e["charts"]) for e in results["experiments"]):
            fail(f"Tab leads to {charts} charts only")
        read = chart_by_arrows(browser, results)
        series_by_legend(browser)
        buttons(browser)
        if browser.failures:
            fail(f"the page's script fails: {browser.failures}")
    finally:
        browser.close()
    print(f"{len(stops)} stops of Tab, {charts} charts; arrow keys read {read}")


if __name__ == "__main__":
    main()
