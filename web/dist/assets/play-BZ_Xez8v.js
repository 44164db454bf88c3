<<<<<<<< HEAD:web/dist/assets/play-C8ZcgVuP.js
import{nt as e}from"./index-BN0bakJ-.js";var t={name:`play`,size:24,node:[[`path`,{d:`M5 5a2 2 0 0 1 3.008-1.728l11.997 6.998a2 2 0 0 1 .003 3.458l-12 7A2 2 0 0 1 5 19z`,key:`10ikf1`}]]};t.node;var n=e(t);export{n as t};
========
import{rt as e}from"./index-BydS8Lfo.js";var t={name:`play`,size:24,node:[[`path`,{d:`M5 5a2 2 0 0 1 3.008-1.728l11.997 6.998a2 2 0 0 1 .003 3.458l-12 7A2 2 0 0 1 5 19z`,key:`10ikf1`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 16714c6 (console: Apps of tools are drawn in a sandbox on another origin):web/dist/assets/play-BZ_Xez8v.js
