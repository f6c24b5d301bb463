"use strict";
// Before anything is drawn: with scripts, one table shows at a time; without, all of them stand beneath one another.
document.documentElement.classList.add("js");
