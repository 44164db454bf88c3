<<<<<<<< HEAD:web/dist/assets/rotate-cw-BdRU6oxQ.js
import{nt as e}from"./index-BN0bakJ-.js";var t={name:`rotate-cw`,size:24,node:[[`path`,{d:`M21 12a9 9 0 1 1-9-9c2.52 0 4.93 1 6.74 2.74L21 8`,key:`1p45f6`}],[`path`,{d:`M21 3v5h-5`,key:`1q7to0`}]]};t.node;var n=e(t);export{n as t};
========
import{rt as e}from"./index-BydS8Lfo.js";var t={name:`rotate-cw`,size:24,node:[[`path`,{d:`M21 12a9 9 0 1 1-9-9c2.52 0 4.93 1 6.74 2.74L21 8`,key:`1p45f6`}],[`path`,{d:`M21 3v5h-5`,key:`1q7to0`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 16714c6 (console: Apps of tools are drawn in a sandbox on another origin):web/dist/assets/rotate-cw-4QVmQNAA.js
