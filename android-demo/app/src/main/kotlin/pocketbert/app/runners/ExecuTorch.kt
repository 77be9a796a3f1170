package pocketbert.app.runners

import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor
import pocketbert.app.CopiedModels
import pocketbert.core.contract.Model
import pocketbert.core.contract.PaddedRow
import pocketbert.core.model.Runner
import pocketbert.core.model.RunnerFailed
import pocketbert.core.model.RunnerOptions
import pocketbert.core.model.RunnerRefused
import pocketbert.core.model.Runtime
import java.io.IOException

/**
 * ExecuTorch's modules: methods by name, through XNNPACK, on a file that is mapped from a copy outside of the APK.
 *
 * There is no call here that sets XNNPACK's weight cache; the library for Android is built with it on, so methods that share
 * weights pack them once (`tools/cmake/preset/android.cmake` of v1.4.1: `EXECUTORCH_XNNPACK_ENABLE_WEIGHT_CACHE`).
 */
class ExecuTorch(private val copies: CopiedModels) : Runtime {
    override val name = "ExecuTorch"
    override val version = VERSION
    override val backend = "executorch"

    override fun open(model: Model, options: RunnerOptions): Runner {
        if (options.computeUnits !in setOf(null, "CPU")) {
            throw RunnerRefused("there are no compute units ${options.computeUnits}; there is the CPU")
        }
        return try {
            val file = model.onDisk ?: copies.file(model)
            ExecuTorchRunner(Module.load(file.path, Module.LOAD_MODE_MMAP, options.threads), model)
        } catch (error: IOException) {
            throw RunnerFailed("${model.file} cannot be copied out of the app: ${error.message}", error)
        } catch (error: LinkageError) {
            throw RunnerFailed("ExecuTorch's library cannot be loaded: ${error.message}", error)
        } catch (error: RuntimeException) {
            // Its own exceptions are of several classes, all of them below this one.
            throw RunnerFailed("ExecuTorch cannot open ${model.file}: ${error.message}", error)
        }
    }

    companion object {
        /** Of the library that the app is built with; it does not tell itself. As in `gradle/libs.versions.toml`. */
        const val VERSION = "1.4.1"
    }
}

private class ExecuTorchRunner(private val module: Module, private val model: Model) : Runner {
    override val delegate: String? =
        model.signature.functions.flatMap { module.getMethodMetadata(it.name).backends.toList() }.distinct().joinToString().ifEmpty { null }
    override val operations: Pair<Int, Int>? = null

    override fun run(row: PaddedRow): Map<String, FloatArray> {
        // Inputs and outputs have no names there: they come in the order of the signature.
        val shape = longArrayOf(1, row.length.toLong())
        val inputs = row.function.inputs.map { EValue.from(Tensor.fromBlob(row.inputs.getValue(it.name), shape)) }
        val found = try {
            module.execute(row.function.name, *inputs.toTypedArray())
        } catch (error: RuntimeException) {
            throw RunnerFailed("ExecuTorch cannot run ${row.function.name}: ${error.message}", error)
        }
        val names = row.function.outputs.map { it.name }
        if (found.size != names.size) throw RunnerFailed("${model.file} gave ${found.size} outputs, and has ${names.size}")
        return names.zip(found) { name, value -> name to value.toTensor().dataAsFloatArray }.toMap()
    }

    override fun close() = module.close()
}
