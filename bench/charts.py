"""Charts of the benchmark page, as SVG: bars of the medians, whiskers over the rounds."""

from html import escape

FONT = "font-family='system-ui, sans-serif' font-size='13'"
INK, FAINT, OURS, OTHERS = "#222", "#ddd", "#1f6fb4", "#b9bfc7"
ROW, BAR, GAP, PANELS = 26, 16, 20, 760


def text(x, y, words, anchor="start", more=""):
    return "<text x='%.1f' y='%.1f' text-anchor='%s' fill='%s' %s>%s</text>" % (
        x,
        y,
        anchor,
        INK,
        more,
        escape(words),
    )


def bar(x, y, width, ours):
    return "<rect x='%.1f' y='%.1f' width='%.1f' height='%d' fill='%s'/>" % (
        x,
        y,
        max(width, 1),
        BAR,
        OURS if ours else OTHERS,
    )


def panels(title, subjects, loads, digits=0, one_scale=False):
    """One panel of bars for each load, each with a scale of its own or all with one.

    `loads` is a list of (name, {subject: (value, low, high)}). Subjects whose name begins
    with "Forebay" stand out.
    """
    names = 7.4 * max(map(len, subjects)) + 20
    wide = PANELS // len(loads)
    width = names + len(loads) * (wide + GAP)
    height = 58 + ROW * len(subjects) + 8
    out = [
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d' %s>"
        % (width, height, width, height, FONT),
        "<title>%s</title>" % escape(title),
        "<rect width='100%' height='100%' fill='white'/>",
        text(10, 20, title, more="font-weight='600'"),
    ]
    for row, subject in enumerate(subjects):
        out.append(text(names - 8, 58 + ROW * row + BAR - 3, subject, "end"))
    highest = [max(most for _, _, most in values.values()) for _, values in loads]
    for column, (name, values) in enumerate(loads):
        left = names + column * (wide + GAP)
        scale = (wide - 62) / (
            max(highest) if one_scale else highest[column]
        )  # a figure ends each bar
        out.append(text(left, 46, name))
        out.append("<path d='M%.1f 52V%d' stroke='%s'/>" % (left, height - 8, FAINT))
        for row, subject in enumerate(subjects):
            value, low, high = values[subject]
            top = 58 + ROW * row
            out.append(bar(left, top, value * scale, subject.startswith("Forebay")))
            if high > low:
                out.append(
                    "<path d='M%.1f %.1fH%.1f' stroke='%s'/>"
                    % (left + low * scale, top + BAR / 2, left + high * scale, INK)
                )
            out.append(
                text(
                    left + max(value, high) * scale + 5,
                    top + BAR - 3,
                    "{:,.{}f}".format(value, digits),
                )
            )
    out.append("</svg>\n")
    return "\n".join(out)


def durable(measure):
    """Durable writes per second, by subject, for each load."""
    # The bar of the ceiling would make all other bars short.
    rows = {name: row for name, row in measure["rows"].items() if "ceiling" not in name}
    loads = list(next(iter(rows.values())))

    def figures(row, load):
        spread = row[load].get("iops_spread") or (row[load]["iops"],) * 2
        return (row[load]["iops"], *spread)

    return panels(
        "4 KiB writes that are durable before the answer, per second",
        list(rows),
        [(load, {subject: figures(row, load) for subject, row in rows.items()}) for load in loads],
    )


def wear(measure, others):
    """Device bytes per byte of 4 KiB writes; `others` is a list of (name, {row: figure})."""
    loads = []
    for name, row in measure["rows"].items():
        if name.endswith(" 4K"):
            values = [("Forebay", row["kernel"])] + [
                (who, figures[name]) for who, figures in others
            ]
            loads.append((name.split()[0], {who: (value, value, value) for who, value in values}))
    subjects = ["Forebay"] + [who for who, _ in others]
    return panels(
        "Bytes at 16 devices for each byte of random 4 KiB writes, 12 % full",
        subjects,
        loads,
        2,
        one_scale=True,
    )
