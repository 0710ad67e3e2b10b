"""The look of a report: one style sheet, light or dark as the reader's system is."""

LIGHT = ("2563eb", "ea580c", "0d9488", "9333ea", "dc2626", "0891b2", "ca8a04", "db2777", "4d7c0f", "64748b")
DARK = ("60a5fa", "fb923c", "2dd4bf", "c084fc", "f87171", "22d3ee", "facc15", "f472b6", "a3e635", "94a3b8")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{i}:#{colour};" for i, colour in enumerate(colours))


_USES = "".join(
    f".l{i}{{stroke:var(--c{i})}}.f{i}{{fill:var(--c{i})}}.b{i}{{background:var(--c{i})}}"
    for i in range(len(LIGHT))
)

STYLE = (
    ":root{color-scheme:light dark;--bg:#f7f8fa;--card:#fff;--ink:#171b22;--soft:#5c6675;--rule:#e3e7ed;"
    "--best:#eff5ff;" + _palette(LIGHT) + "}"
    "@media(prefers-color-scheme:dark){:root{--bg:#0e1116;--card:#161b22;--ink:#e6e9ee;--soft:#98a2b3;"
    "--rule:#2a313c;--best:#182538;"
    + _palette(DARK)
    + "}}"
    + _USES
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1180px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:28px;line-height:1.2;margin:0;letter-spacing:-.02em}
h2{font-size:17px;margin:40px 0 4px;letter-spacing:-.01em}
.sub,.note{color:var(--soft);margin:6px 0 0;max-width:80ch}
.note{margin:0 0 12px;font-size:14px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:28px 0 0}
.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:14px 16px;display:grid;gap:2px}
.tile span,.tile small{color:var(--soft);font-size:12.5px}
.tile b{font-size:24px;font-weight:620;letter-spacing:-.02em}
.parts{display:grid;grid-template-columns:
repeat(auto-fill,minmax(min(100%,500px),1fr));gap:16px;margin-top:12px}
figure,.wide,dl,pre{background:var(--card);border:1px solid var(--rule);border-radius:10px;
margin:0;padding:16px 18px}
.full{grid-column:1/-1}
figcaption{font-weight:600;font-size:14px}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:6px 0 4px;padding:0;font-size:12.5px;
color:var(--soft)}
.legend i{display:inline-block;width:14px;height:3px;border-radius:2px;
margin:0 6px 3px 0;vertical-align:middle}
.legend i.dashed{-webkit-mask:linear-gradient(90deg,#000 0 5px,#0000 5px 9px,#000 9px);
mask:linear-gradient(90deg,#000 0 5px,#0000 5px 9px,#000 9px)}
svg{display:block;width:100%;height:auto;margin-top:6px;overflow:visible}
svg text{font-size:11.5px;fill:var(--soft);text-anchor:middle}
svg .end,svg .name{text-anchor:end}
svg .name{fill:var(--ink);font-size:12.5px}
svg .said{text-anchor:start;fill:var(--ink);font-size:12px}
svg .strong{font-weight:650}
svg .marked{text-anchor:start;fill:var(--ink)}svg .marked.end{text-anchor:end}
.grid{stroke:var(--rule);stroke-width:1;fill:none}
.mark{stroke:var(--ink);stroke-width:1;stroke-dasharray:2 4;fill:none;opacity:.75}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.line.dashed{stroke-dasharray:6 4}
.bar{opacity:.55}.bar.strong{opacity:1}
.wide{overflow-x:auto;padding:4px 18px;grid-column:1/-1}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{color:var(--soft);font-weight:500;font-size:12.5px}
th,td{text-align:left;padding:8px 14px 8px 0;border-bottom:1px solid var(--rule);white-space:nowrap}
th:not(:first-child),td.n{text-align:right}
tbody tr:last-child td{border-bottom:0}
tr.best td{background:var(--best);font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 20px;font-size:13.5px;grid-column:1/-1}
dt{color:var(--soft)}dd{margin:0}
pre{overflow-x:auto;font:12.5px/1.5 ui-monospace,"SF Mono",Menlo,monospace;grid-column:1/-1}
@media print{body{background:#fff}figure,.tile,.wide{break-inside:avoid}}
"""
)
