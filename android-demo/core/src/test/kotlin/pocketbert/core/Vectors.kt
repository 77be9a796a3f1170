package pocketbert.core

import java.io.File

/** Where the texts and cases lie that Python wrote. */
internal val VECTORS: File by lazy {
    val named = System.getProperty("pocketbert.vectors").orEmpty()
    check(named.isNotEmpty()) { "run `make core-check`: it writes the vectors and names their folder" }
    File(named)
}
