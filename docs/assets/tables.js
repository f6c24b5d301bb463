// The theme puts each table into a box that scrolls sideways. A keyboard reaches the boxes that have something to scroll.
addEventListener("load", () => {
  const boxes = new ResizeObserver(changed => {
    for (const { target } of changed) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0
      else target.removeAttribute("tabindex")
    }
  })
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) boxes.observe(box)
})
