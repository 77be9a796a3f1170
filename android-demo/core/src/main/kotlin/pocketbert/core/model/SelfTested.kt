package pocketbert.core.model

import pocketbert.core.contract.Model
import java.util.concurrent.ConcurrentHashMap

/**
 * The untried compute units on which files have passed their self-test in this process, by the digest of what was verified.
 * Safe for several threads.
 */
class SelfTested {
    private val passed: MutableSet<Pair<String, String>> = ConcurrentHashMap.newKeySet()

    /** Notes that the golden rows of a model held on some units. */
    fun add(model: Model, units: String) {
        passed.add(model.entry.digest to units)
    }

    /** Returns the units that a model may use: those of its file, and behind them the untried ones on which it passed. */
    fun units(model: Model): List<String> = model.computeUnits + model.untriedUnits.keys.filter { model.entry.digest to it in passed }

    /**
     * Returns the units that are meant by a request.
     *
     * @param asked null for the first of the file's own.
     * @throws RunnerRefused the model may not use them; the message says which it may use, and what is known.
     */
    fun choose(model: Model, asked: String?): String {
        val units = units(model)
        if (asked == null) return units.first()
        if (asked in units) return asked
        val there = "there ${if (units.size == 1) "is" else "are"} ${units.joinToString()}"
        val folder = model.entry.folder
        val why = model.untriedUnits[asked] ?: throw RunnerRefused("there are no compute units $asked for $folder; $there")
        throw RunnerRefused("$asked is untried for $folder; $there, and $asked once its self-test has passed there. $why")
    }
}
