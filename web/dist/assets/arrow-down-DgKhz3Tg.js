<<<<<<<< HEAD:web/dist/assets/arrow-down-CQGEXqea.js
import{nt as e}from"./index-BN0bakJ-.js";var t={name:`arrow-down`,size:24,node:[[`path`,{d:`M12 5v14`,key:`s699le`}],[`path`,{d:`m19 12-7 7-7-7`,key:`1idqje`}]]};t.node;var n=e(t);export{n as t};
========
import{rt as e}from"./index-BydS8Lfo.js";var t={name:`arrow-down`,size:24,node:[[`path`,{d:`M12 5v14`,key:`s699le`}],[`path`,{d:`m19 12-7 7-7-7`,key:`1idqje`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 16714c6 (console: Apps of tools are drawn in a sandbox on another origin):web/dist/assets/arrow-down-DgKhz3Tg.js
