"""How the page looks: in light and dark, on paper, wide and narrow. Colours are Okabe and Ito's,
which people with any kind of colour vision tell apart; in the dark the lighter of them.
"""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --card: #f5f7f9; --edge: #d5dbe1;
  --blue: #0072b2; --sky: #56b4e9; --green: #009e73; --orange: #e69f00; --red: #d55e00; --pale: #d5dbe1; --veil: .45 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf0; --soft: #a3adb8; --paper: #14181d; --card: #1d232a; --edge: #39424c;
    --blue: #56b4e9; --sky: #2f7fb0; --green: #2fc79a; --orange: #f0b533; --red: #f0813a; --pale: #39424c;
    --veil: .5 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 60px }
h1 { font-size: 26px; margin: 0 0 2px } h2 { font-size: 18px; margin: 38px 0 6px } p { margin: 6px 0 12px }
.soft, caption, footer { color: var(--soft) } a { color: var(--blue) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(172px, 1fr)); gap: 12px; margin: 18px 0 }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 12px 14px }
.card b { display: block; font-size: 25px; line-height: 1.25; font-weight: 650; margin: 2px 0 }
.card span { color: var(--soft); font-size: 13px; display: block }
.note { border-left: 4px solid var(--orange); background: var(--card); padding: 8px 12px; margin: 12px 0 }
.note.bad { border-color: var(--red) } .note.good { border-color: var(--green) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, monospace; margin: 4px 0 }
.drawing { margin: 8px 0 } .drawing.narrow { display: none; max-width: 480px }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; overflow: visible }
svg text { fill: var(--ink) } svg .tick { fill: var(--soft) } svg .name { font-weight: 650; font-size: 12px }
svg .number { font-size: 11px; font-weight: 600 }
.grid { stroke: var(--edge); stroke-width: 1 } .rule { stroke: var(--soft); stroke-width: 1 }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round } .dot { fill: currentColor }
.area { fill: currentColor; stroke: none } .pause { fill: var(--red); fill-opacity: var(--veil) }
.off { fill: var(--pale); fill-opacity: var(--veil) }
.mark { fill: var(--card); stroke: var(--soft) } a:hover .mark, a:focus .mark { stroke: var(--blue); stroke-width: 2 }
.blue { color: var(--blue) } .sky { color: var(--sky) } .green { color: var(--green) } .orange { color: var(--orange) }
.red { color: var(--red) } .pale { color: var(--pale) } .area.sky { fill-opacity: .55 }
.dashed { stroke-dasharray: 6 4 }
.area.hatched { fill: url(#hatch); stroke: currentColor; stroke-width: .6 }
.area.green.hatched { fill: url(#hatch-green) } .area.blue.hatched { fill: url(#hatch-blue) }
table { border-collapse: collapse; width: 100%; margin: 8px 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--edge) }
td { overflow-wrap: anywhere } .amounts td { overflow-wrap: normal }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap } td.n { white-space: nowrap }
tr:target { background: var(--card); outline: 2px solid var(--blue) }
details { margin: 2px 0 } summary { cursor: pointer; color: var(--blue) }
i.swatch { display: inline-block; width: 14px; height: 14px; border-radius: 2px; margin-right: 8px;
  vertical-align: -2px; background: currentColor }
i.swatch.hatched { background: repeating-linear-gradient(45deg, currentColor 0 3px, transparent 3px 6px);
  border: 1px solid currentColor }
footer { margin-top: 44px; border-top: 1px solid var(--edge); padding-top: 10px; font-size: 13px }
@media screen and (max-width: 860px) { .drawing.wide { display: none } .drawing.narrow { display: block } }
@media screen and (max-width: 620px) {
  main { padding: 18px 12px 40px }
  th { white-space: normal } th, td { padding-right: 8px } .amounts td { font-size: 14px }
  .stacked thead { position: absolute; clip-path: inset(50%); height: 1px; overflow: hidden }
  .stacked, .stacked tbody { display: block }
  .stacked tr { display: grid; grid-template-columns: 2.2em 1fr; padding: 6px 0; border-bottom: 1px solid var(--edge) }
  .stacked td { border: 0; padding: 1px 0; grid-column: 2 } .stacked td:first-child { grid-column: 1 }
  .stacked td[data-label]::before { content: attr(data-label) ": "; color: var(--soft) } }
@media print { main { max-width: none; padding: 0 } h2 { break-after: avoid } .card, tr, svg { break-inside: avoid } }
"""
HATCHES = "".join(
    f'<pattern id="{name}" class="{colour}" width="6" height="6" patternUnits="userSpaceOnUse" '
    f'patternTransform="rotate(45)"><path d="M0 0V6" stroke="currentColor" stroke-width="5.5"/></pattern>'
    for name, colour in (("hatch", "orange"), ("hatch-green", "green"), ("hatch-blue", "blue"))
)
"""Diagonal stripes; a drawing on the page may use them by name, and they are there once."""
