#!/usr/bin/env python3
"""Looks at the page of 'forebay simulate all' in headless Chromium: wide, narrow, dark and printed.

    labpage.py PAGE RESULTS.json

Every chart is drawn, has minor ticks and at most five lines, and nothing sticks out of the page. Pictures of the page's
head and of two experiments go to NAME.png here, and the printed page to page.pdf.
"""

import base64
import json
import sys

from keyboard import Browser

VIEWS = {"light": (1400, "light"), "dark": (1400, "dark"), "narrow": (420, "light")}
# Parts of the page that have charts of every kind: top and bottom.
PARTS = {
    "head": "[0, Math.min(4000, document.getElementById('figures').offsetTop)]",
    "lines": "(e => [e.offsetTop, Math.min(3500, e.offsetHeight)])(document.getElementById('degradation'))",
    "intervals": "(e => [e.offsetTop, Math.min(3000, e.offsetHeight)])(document.getElementById('sensitivity'))",
}
# What sticks out of the page and cannot be scrolled to.
STICKS_OUT = """(() => {
  const width = document.documentElement.clientWidth, out = [];
  for (const x of document.querySelectorAll('body *')) {
    const box = x.getBoundingClientRect();
    if (box.width === 0 || box.right <= width + 1) continue;
    let scrolls = false;
    for (let p = x.parentElement; p && p !== document.body; p = p.parentElement)
      scrolls = scrolls || /auto|scroll|hidden/.test(getComputedStyle(p).overflowX);
    if (!scrolls) out.push(x.tagName + '.' + x.className);
  }
  return out;
})()"""
# Of every drawing: its chart, lines by name, and whether numbers have minor ticks.
DRAWN = """[...document.querySelectorAll('.area')].map(area => {
  const drawn = echarts.getInstanceByDom(area);
  if (!drawn) return null;
  const option = drawn.getOption(), axes = [...option.xAxis, ...option.yAxis].filter(a => a.type !== 'category');
  return { of: area.closest('.chart').dataset.experiment + '/' + area.closest('.chart').dataset.chart,
    cells: option.series.filter(s => s.id === 'histogram').reduce((sum, s) => sum + s.data.length, 0),
    lines: new Set(option.series.filter(s => s.type === 'line').map(s => s.name)).size,
    ticks: axes.every(a => a.minorTick.show), paged: option.legend.some(l => l.show && l.type === 'scroll') };
})"""


def counted(chart):
    """How many ranges of the chart's histogram hold something."""
    return sum(len(column["counts"]) for column in (chart.get("histogram") or {"columns": []})["columns"])


def look(browser, width, charts):
    """The number of drawings, all of which are as they should be."""
    shown = browser.run("document.documentElement.clientWidth")
    if shown != width:
        sys.exit(f"the page is {shown} pixels wide, not {width}")
    if out := browser.run(STICKS_OUT):
        sys.exit(f"{len(out)} elements stick out at {width} pixels: {out[:4]}")
    drawn = browser.run(DRAWN)
    if None in drawn or {d["of"] for d in drawn} != set(charts):
        sys.exit(f"of {len(charts)} charts {len({d['of'] for d in drawn if d})} are drawn at {width} pixels")
    for d in drawn:
        if d["lines"] > 5 or not d["ticks"] or d["paged"]:
            sys.exit(f"a chart has more than five lines, no minor ticks or a paged legend: {d}")
        if d["cells"] != charts[d["of"]]:
            sys.exit(f"a histogram of {charts[d['of']]} cells is drawn otherwise: {d}")
    if not any(charts.values()):
        sys.exit("no chart has a histogram")
    return len(drawn)


def main():
    page, results = sys.argv[1], json.load(open(sys.argv[2]))
    charts = {f"{e['id']}/{i}": counted(c) for e in results["experiments"] for i, c in enumerate(e["charts"])}
    browser = Browser(page)
    browser.call("Emulation.setScrollbarsHidden", hidden=True)
    for view, (width, theme) in VIEWS.items():
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        browser.run(f"if (document.documentElement.dataset.theme !== '{theme}') document.getElementById('theme').click()")
        # Two frames, so that what follows the new width is drawn.
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        browser.call("Runtime.evaluate", expression=frames, awaitPromise=True)
        drawings = look(browser, width, charts)
        for part, place in PARTS.items():
            top, height = browser.run(place)
            clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 0.5}
            picture = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
            with open(f"{view}-{part}.png", "wb") as file:
                file.write(base64.b64decode(picture["data"]))
        print(f"{view}, {width} pixels: {len(charts)} charts in {drawings} drawings")
    browser.run("document.querySelector('h1').style.width = '3000px'")
    if not browser.run(STICKS_OUT):
        sys.exit("a heading of 3000 pixels is not noticed")
    browser.run("document.querySelector('h1').style.width = ''")
    browser.call("Emulation.clearDeviceMetricsOverride")
    printed = browser.call("Page.printToPDF", printBackground=False)
    with open("page.pdf", "wb") as file:
        file.write(base64.b64decode(printed["data"]))
    if browser.failures:
        sys.exit(f"the page's script fails: {browser.failures}")
    browser.close()


if __name__ == "__main__":
    main()
