@file:Suppress("UNUSED_PARAMETER")

package org.pytorch.executorch

import java.io.Closeable

private fun declared(): Nothing = error("ExecuTorch is not in this build; Gradle's has it")

class Tensor private constructor() {
    val dataAsFloatArray: FloatArray get() = declared()

    companion object {
        @JvmStatic
        fun fromBlob(data: IntArray, shape: LongArray): Tensor = declared()
    }
}

class EValue private constructor() {
    fun toTensor(): Tensor = declared()

    companion object {
        @JvmStatic
        fun from(value: Tensor): EValue = declared()
    }
}

class MethodMetadata private constructor() {
    val backends: Array<String> get() = declared()
}

open class Module private constructor() : Closeable {
    fun execute(methodName: String, vararg inputs: EValue): Array<EValue> = declared()

    fun loadMethod(methodName: String): Unit = declared()

    fun getMethodMetadata(name: String): MethodMetadata = declared()

    override fun close() = declared()

    companion object {
        const val LOAD_MODE_MMAP = 1

        @JvmStatic
        fun load(modelPath: String?, loadMode: Int, numThreads: Int): Module = declared()
    }
}
