package pocketbert.models

import pocketbert.core.Cancellation
import pocketbert.core.benchmark.Phone
import pocketbert.core.contract.Entry
import pocketbert.core.contract.Files
import pocketbert.core.contract.Listed
import pocketbert.core.contract.Model
import pocketbert.core.contract.Models
import pocketbert.core.contract.Policy
import pocketbert.core.contract.Signature
import pocketbert.core.model.Runtime
import pocketbert.core.model.SelfTested
import pocketbert.core.output.ZeroShot
import java.io.IOException

/**
 * A runtime that is linked into an app, with what it lets one choose.
 *
 * @property threads how many it can be told to use; one value where it cannot be told.
 */
class LinkedRuntime(val runtime: Runtime, val threads: IntRange = 1..1)

/**
 * All that an app has beside its screens.
 *
 * @property models where `pocketbert ship` put models.
 * @property runs the folder of runs, see [RunFolders].
 */
class Equipment(val models: Files, val policy: Policy, val runtimes: List<LinkedRuntime>, val phone: Phone, val runs: RunFolders) {
    /** What self-tests have shown in this process. */
    val selfTested = SelfTested()

    /** The models that screens hold in memory. */
    internal val inMemory = InMemory()

    /** Returns the runtime for a backend's files. */
    fun runtime(backend: String): LinkedRuntime? = runtimes.firstOrNull { it.runtime.backend == backend }
}

/** What is done with a model, which decides the form of its screen. */
enum class Task {
    LABELS,
    VALUE,
    VALUES,
    ANSWER,
    SEARCH,
    ENTITIES,
    ;

    companion object {
        fun of(signature: Signature) = when (signature.outputKind) {
            "embedding" -> SEARCH
            "value" -> VALUE
            "values" -> VALUES
            "token_logits" -> ENTITIES
            "spans" -> ANSWER
            // Be it one label of several, or each for itself.
            else -> LABELS
        }
    }
}

/** A model that can be used, with the runtime that runs it. */
class ShelvedModel(val model: Model, val linked: LinkedRuntime, internal val equipment: Equipment) {
    /** The compute units that may be chosen now, the default first; see [Model.untriedUnits] for those that a self-test may try. */
    val computeUnits get() = equipment.selfTested.units(model)

    /** The folder of the model, by which requests name it. */
    val id get() = model.entry.folder
    val task = Task.of(model.signature)

    /** The prompts that a person can choose among; none where all are empty, as folders of models without prompts have them. */
    val prompts: List<String> get() = model.signature.prompts.let { if (it.values.all(String::isEmpty)) emptyList() else it.keys.sorted() }

    /** Whether a person's own labels can be asked in place of its own. */
    val takesOwnLabels get() = ZeroShot.isPossible(model.signature)

    /** Whether each of those can be decided by itself. */
    val decidesEach get() = ZeroShot.decidesEach(model.signature)

    /** The recipe's name, which is what its maker calls it. */
    val name get() = model.entry.recipe

    private val parameters get() = model.signature.parameters

    /** What two models share whose vectors may lie in one index; null for one that embeds nothing, or that an older version made. */
    private val space get() = model.signature.vectors?.let { Triple(it.id, it.width, it.isUnitLength) }

    /**
     * Returns the smallest of some models that can embed documents for this one's index, or null: one of the same vector space with
     * fewer parameters, which is faster and less exact. A file of the same recipe is another format of this one.
     */
    fun faster(among: List<ShelvedModel>): ShelvedModel? {
        val own = space ?: return null
        return among.filter { it.space == own && it.name != name && !it.model.hasRandomWeights && it.parameters < parameters }
            .minByOrNull { it.parameters }
    }
}

/** A model that cannot be used, and the reason in a sentence. */
class RefusedModel(val entry: Entry, val why: String)

/** No model was shipped into the app. */
class NoModels : Exception("no model has been shipped into this app")

/** What lies in an app's folder of models. */
class Shelf(val usable: List<ShelvedModel>, val refused: List<RefusedModel>) {
    /** Whether a model is used that nobody signed. */
    val usesUnsigned get() = usable.any { it.model.signedBy == null }

    companion object {
        /**
         * Reads the models: every byte of them, so call it off the main thread.
         *
         * @throws NoModels none was shipped.
         * @throws pocketbert.core.contract.UnreadableFile the index cannot be read.
         */
        fun open(equipment: Equipment, cancellation: Cancellation = Cancellation()): Shelf {
            try {
                equipment.models.open("models.json").close()
            } catch (_: IOException) {
                throw NoModels()
            }
            val usable = ArrayList<ShelvedModel>()
            val refused = ArrayList<RefusedModel>()
            for (listed in Models.open(equipment.models, equipment.policy, cancellation)) {
                when (listed) {
                    is Listed.Broken -> refused.add(RefusedModel(listed.entry, listed.error.sentence))
                    is Listed.Usable -> {
                        val linked = equipment.runtime(listed.model.signature.backend)
                        if (linked != null) {
                            usable.add(ShelvedModel(listed.model, linked, equipment))
                        } else {
                            refused.add(RefusedModel(listed.entry, noRuntime(listed.model, equipment)))
                        }
                    }
                }
            }
            return Shelf(usable, refused)
        }

        private fun noRuntime(model: Model, equipment: Equipment): String {
            val here = equipment.runtimes.joinToString(" and ") { it.runtime.name }
            return "${model.entry.folder} is a file for ${model.signature.backend}, and this app runs $here."
        }
    }
}
